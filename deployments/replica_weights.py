"""Where a starting replica's weights come from: from its node's cache, which brings them once for
all replicas of the node, or else from their source to the node's disk, by the replica itself.

Must not know how they are loaded.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Origin, Stage, WeightsOrder
from deployments.config import ModelArgs
from deployments.node_cache_keeper import LEASE_S, NodeCacheKeeper, reason
from deployments.weights_host import Reached, WeightsLease
from engine.checkpoints.pull import pull

logger = logging.getLogger("ray.serve")

REACH_PERIOD_S = 60.0
"""If nothing came for so long, the replica brings them by itself."""


class NodeWeightsLost(Exception):
    """The node's cache can't give the weights: one line that says why."""


@dataclass(frozen=True, slots=True)
class Brought:
    """Weights that are on the node."""

    checkpoint: Path
    """A folder that opens."""
    started_from: Rung
    """Where they stood on the node when they were asked for; COLD, too, if nobody kept account."""
    is_pulled: bool = False
    """By the replica itself."""
    origin: Origin = ""
    """Who the node had them from just now; empty: they were there, or nobody kept account."""
    num_bytes: int = 0
    """That came from there."""

    @property
    def stage(self) -> str:
        """What the start calls the time that this took."""
        if self.is_pulled:
            return "pull"
        return f"from_{self.origin}" if self.origin else "find_weights"


def order_of(args: ModelArgs, rung: Rung) -> WeightsOrder:
    """For one node, with the pins of ``args``."""
    return WeightsOrder(
        model=args.name,
        source=args.source,
        rung=rung,
        source_sha256=args.source_sha256,
        weights_sha256=args.weights_sha256,
    )


class ReplicaWeights:
    """Call order: ``bring``, then ``record_start`` once it started, ``release`` in any case."""

    def __init__(
        self,
        args: ModelArgs,
        keeper: NodeCacheKeeper | None,
        holder: str,
        *,
        home: Path,
    ) -> None:
        """``holder``: the engine's id."""
        self._args = args
        self._keeper = keeper
        self._home = home
        self._lease = WeightsLease(args.name, holder, LEASE_S)

    async def bring(self) -> Brought:
        """Raises `CheckpointError` if they can't be had at all."""
        section = self._args.node_cache
        if section is not None and section.weights is not None:
            rung = Rung.STAGED if section.weights.host_bytes > 0 else Rung.ON_DISK
            try:
                return await self._from_node(order_of(self._args, rung))
            except NodeWeightsLost as error:
                logger.error(
                    "%s: the node's cache has no weights for it, it brings them by itself: %s",
                    self._lease.holder,
                    error,
                )
        args = self._args
        checkpoint = await asyncio.to_thread(
            pull, args.source, name=args.name, home=self._home, sha256=args.source_sha256
        )
        return Brought(checkpoint.path, Rung.COLD, is_pulled=True)

    async def record_start(self, stages: Sequence[Stage]) -> None:
        """Tell the node's cache what the start took. Never raises."""
        await self._tell("record_start", self._args.name, tuple(stages))

    async def release(self) -> None:
        """The replica doesn't use the weights any more. Never raises."""
        if self._keeper is not None and self._keeper.lease is not None:
            self._keeper.lease = None
            await self._tell("release_weights", self._lease)

    async def _from_node(self, order: WeightsOrder) -> Brought:
        """Raises `NodeWeightsLost`."""
        reached: Reached = await self._call("reach_weights", order, REACH_PERIOD_S, self._lease)
        before, state, num_done_bytes = reached.before, reached.state, 0
        while not state.folder and state.failure is None:
            if state.num_done_bytes == num_done_bytes:
                raise NodeWeightsLost(f"nothing came for {REACH_PERIOD_S:g} s")
            num_done_bytes = state.num_done_bytes
            reached = await self._call("reach_weights", order, REACH_PERIOD_S, self._lease)
            state = reached.state
        if not state.folder:
            raise NodeWeightsLost(str(state.failure))
        assert self._keeper is not None
        self._keeper.lease = self._lease
        if state.failure is not None:  # what is there will do
            logger.warning("%s starts from %s: %s", order.model, state.rung.name, state.failure)
        # Other weights under the same name are none.
        rung = before.rung if before.revision == state.revision else Rung.COLD
        is_new = rung < state.rung
        if is_new and state.origin == "disk":  # where nobody had looked yet
            rung = Rung.ON_DISK
        return Brought(
            Path(state.folder),
            min(rung, state.rung),
            origin=state.origin if is_new else "",
            num_bytes=state.num_bytes if is_new else 0,
        )

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Of the node's cache. Raises `NodeWeightsLost`."""
        actor = None if self._keeper is None else self._keeper.actor
        if actor is None:
            raise NodeWeightsLost("it could not be started")
        try:
            answer = await getattr(actor, method).remote(*arguments)
        except Exception as error:
            raise NodeWeightsLost(reason(error)) from error
        if answer is None:
            raise NodeWeightsLost("it runs without: another model's node_cache section counts here")
        return answer

    async def _tell(self, method: str, *arguments: Any) -> None:
        actor = None if self._keeper is None else self._keeper.actor
        if actor is not None:
            try:
                await getattr(actor, method).remote(*arguments)
            except Exception as error:
                logger.warning("the node's cache does not listen: %s", reason(error))
