"""The weights that a node's cache holds for replicas of its node: orders, leases, and how long
nobody has wanted any.

Must not know Ray, nor how bytes travel.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from prometheus_client.core import Metric

from cache_tiers.config import WeightsConfig
from cache_tiers.rung import Rung
from cache_tiers.weights.chunk_server import ChunkServerStats
from cache_tiers.weights.messages import NodeWeightsReport, Stage, WeightsOrder, WeightsState
from deployments.node_identity import NodeIdentity
from deployments.weights_metrics import collect_weights
from engine.available_memory import available_memory_bytes
from engine.weights.node_weights import NodeWeights
from engine.weights.weights_counts import WeightsCounts


class WeightsLease(NamedTuple):
    """A replica uses a model's weights: they stay where they are until it leaves, or falls silent
    for ``ttl_s``."""

    model: str
    holder: str
    ttl_s: float


class Reached(NamedTuple):
    """What has come of waiting for weights."""

    before: WeightsState
    """How they stood when they were asked for."""
    state: WeightsState
    """How those that were asked for stand now."""


class Weights(Protocol):
    """What is needed of a `NodeWeights`."""

    @property
    def counts(self) -> WeightsCounts: ...

    @property
    def lent(self) -> ChunkServerStats: ...

    def order(self, order: WeightsOrder) -> WeightsState: ...

    async def reach(self, order: WeightsOrder, timeout_s: float) -> WeightsState: ...

    def lease(self, model: str, holder: str, ttl_s: float) -> None: ...

    def release(self, model: str, holder: str) -> None: ...

    def record_start(self, model: str, stages: Sequence[Stage]) -> None: ...

    def report(self) -> NodeWeightsReport: ...

    async def close(self) -> None: ...


class WeightsHost:
    """Owner of ``weights``, which are started; lives on one event loop."""

    def __init__(self, weights: Weights, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._weights = weights
        self._clock = clock
        self._used_s = clock()

    @property
    def idle_s(self) -> float:
        """How long nobody ordered or used any, and none were on their way."""
        if any(state.num_leases or is_on_its_way(state) for state in self.report().models):
            self._used_s = self._clock()
        return self._clock() - self._used_s

    def order(self, orders: Sequence[WeightsOrder]) -> NodeWeightsReport:
        """All of them at once; how they stand right then."""
        self._used_s = self._clock()
        for order in orders:
            self._weights.order(order)
        return self.report()

    async def reach(
        self, order: WeightsOrder, timeout_s: float, lease: WeightsLease | None = None
    ) -> Reached:
        """Returns when they are there, can't be had, or after ``timeout_s``. What is there stays
        while the lease holds; without one, only as long as it is ordered."""
        self._used_s = self._clock()
        before = self.state(order.model)
        state = await self._weights.reach(order, timeout_s)
        if state.folder:
            taken = lease or WeightsLease(order.model, "who only looks", 1.0)
            self.lease(taken)  # or they would be kept for a while, for whom to take one
            if lease is None:
                self.release(taken)
        return Reached(before, state)

    def state(self, model: str) -> WeightsState:
        """COLD where nothing is known of it."""
        found = (state for state in self.report().models if state.model == model)
        return next(found, WeightsState(model, Rung.COLD, Rung.COLD))

    def lease(self, lease: WeightsLease) -> None:
        """To be repeated before it ends."""
        self._weights.lease(lease.model, lease.holder, lease.ttl_s)

    def release(self, lease: WeightsLease) -> None:
        """Fine when it has ended already."""
        self._used_s = self._clock()
        self._weights.release(lease.model, lease.holder)

    def record_start(self, model: str, stages: Sequence[Stage]) -> None:
        """What the start of a replica took here."""
        self._weights.record_start(model, stages)

    def report(self) -> NodeWeightsReport:
        return self._weights.report()

    def collect(self) -> Iterator[Metric]:
        """For Prometheus."""
        return collect_weights(self.report(), self._weights.counts, self._weights.lent)

    async def close(self) -> None:
        await self._weights.close()


async def open_weights(
    config: WeightsConfig, *, home: Path, folder: Path, host: str, identity: NodeIdentity
) -> WeightsHost:
    """Started, in ``folder``, which is this cache's own. Raises `WeightsError` or `OSError`."""
    weights = NodeWeights(
        config,
        home=home,
        folder=folder,
        host=host,
        secret=identity.secret,
        port=identity.weights_port,
        available_bytes=available_memory_bytes,
    )
    await weights.start()
    return WeightsHost(weights)


def is_on_its_way(state: WeightsState) -> bool:
    """It will reach what is wanted of it, as far as is known."""
    return state.rung < state.wanted and state.failure is None
