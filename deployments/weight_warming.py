"""Brings a model's weights to nodes of a cluster, or out of their memory, and follows how far they
are.

Looks first, starts node caches only where weights shall be, gives orders in the order of the chain,
and waits. Whatever happens to it, nodes go on with what they were ordered. Must not know Ray.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import WeightsOrder, WeightsState
from deployments.config import ModelArgs
from deployments.fitting_nodes import CacheUnavailable, FittingNode, NodeCaches
from deployments.replica_weights import order_of
from deployments.weight_placement import NodeHolding, NodeOrder, place

PERIOD_S = 0.2
"""Between looks at how far the weights are."""
LEAVE_TIMEOUT_S = 10.0
"""Weights leave within that, unless a replica uses them."""

_Answer = TypeVar("_Answer")

OnProgress = Callable[[FittingNode, WeightsState], None]


@dataclass(frozen=True, slots=True)
class Warmed:
    """How one node ended up."""

    node: FittingNode
    time_s: float
    state: WeightsState | None = None
    """None: its cache couldn't be asked."""
    failure: str | None = None
    """Why it isn't what was ordered; one line."""


class Warming:
    """Of one model. Make one for each ``warm`` or ``cool``."""

    def __init__(
        self,
        args: ModelArgs,
        nodes: Sequence[FittingNode],
        caches: NodeCaches,
        on_progress: OnProgress,
        *,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._args = args
        self._nodes = {node.node_id: node for node in nodes}
        self._caches = caches
        self._on_progress = on_progress
        self._period_s = period_s
        self._clock = clock
        self._began_s = clock()
        self._failures: dict[str, str] = {}
        """By the ids of nodes whose caches can't be asked."""

    async def warm(self, num_nodes: int, rung: Rung) -> list[Warmed]:
        """On so many of the nodes; those first that had the most of it."""
        holdings = await self._look(self._nodes)
        chosen = [order.node_id for order in place(holdings, num_nodes, rung)]
        await asyncio.gather(*(self._try(each, self._caches.make(each)) for each in chosen))
        # Only now all of them have an address for those behind them in the chain.
        orders = place(await self._look(chosen), len(chosen), rung)
        return await self._carry_out(orders, self._reach)

    async def cool(self, num_nodes: int) -> list[Warmed]:
        """So many of those that hold it, or bring it, keep it in memory no longer; those first that
        the fewest replicas use."""
        holdings = await self._look(self._nodes)
        held = [each for each in holdings if max(each.rung, each.wanted) > Rung.COLD]
        held.sort(key=lambda each: (each.num_leases, each.rung, each.node_id))
        orders = [NodeOrder(each.node_id, Rung.COLD, ()) for each in held[:num_nodes]]
        return await self._carry_out(orders, self._see_leave)

    async def _look(self, node_ids: Iterable[str]) -> list[NodeHolding]:
        """Without those that can't be asked."""
        model, asked = self._args.name, [each for each in node_ids if each not in self._failures]
        looks = (self._try(each, self._caches.look(each, model)) for each in asked)
        return [holding for holding in await asyncio.gather(*looks) if holding is not None]

    async def _carry_out(
        self, orders: Sequence[NodeOrder], follow: Callable[[str, WeightsOrder], Awaitable[Warmed]]
    ) -> list[Warmed]:
        given: dict[str, WeightsOrder] = {}
        for each in orders:  # in turn: who is asked for weights knows of them by then
            order = msgspec.structs.replace(order_of(self._args, each.rung), parents=each.parents)
            await self._try(each.node_id, self._caches.order(each.node_id, order))
            given[each.node_id] = order
        ended = await asyncio.gather(
            *(
                self._try(node_id, follow(node_id, order))
                for node_id, order in given.items()
                if node_id not in self._failures
            )
        )
        lost = [
            Warmed(self._nodes[node_id], self._clock() - self._began_s, failure=why)
            for node_id, why in self._failures.items()
        ]
        return [*(each for each in ended if each is not None), *lost]

    async def _reach(self, node_id: str, order: WeightsOrder) -> Warmed:
        showing = asyncio.create_task(self._show(node_id))
        try:
            state = await self._caches.reach(node_id, order)
            while state.rung < order.rung and state.failure is None:
                state = await self._caches.reach(node_id, order)
        finally:
            showing.cancel()
            await asyncio.wait({showing})
        failure = state.failure if state.rung < order.rung else None
        return await self._warmed(node_id, failure)

    async def _see_leave(self, node_id: str, order: WeightsOrder) -> Warmed:
        end_s = self._clock() + LEAVE_TIMEOUT_S
        state = await self._caches.state(node_id, order.model)
        while state.rung is Rung.STAGED and not state.num_leases and self._clock() < end_s:
            await asyncio.sleep(self._period_s)
            state = await self._caches.state(node_id, order.model)
        failure = None
        if state.rung is Rung.STAGED:
            by = (
                f"{state.num_leases} replicas use it" if state.num_leases else "it has not left yet"
            )
            failure = f"still in memory, {by}: it leaves by itself when nobody does"
        return await self._warmed(node_id, failure)

    async def _warmed(self, node_id: str, failure: str | None) -> Warmed:
        state = await self._caches.state(node_id, self._args.name)
        self._on_progress(self._nodes[node_id], state)
        return Warmed(self._nodes[node_id], self._clock() - self._began_s, state, failure)

    async def _show(self, node_id: str) -> None:
        while True:
            state = await self._caches.state(node_id, self._args.name)
            self._on_progress(self._nodes[node_id], state)
            await asyncio.sleep(self._period_s)

    async def _try(self, node_id: str, call: Awaitable[_Answer]) -> _Answer | None:
        """None, and a failure of the node, if its cache can't be asked."""
        try:
            return await call
        except CacheUnavailable as error:
            self._failures[node_id] = str(error)
            return None
