"""A node's weights as its cache offers them: how long nobody has wanted any, and who uses which."""

import asyncio
from collections.abc import Sequence

import msgspec

from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.chunk_server import ChunkServerStats
from cache_tiers.weights.messages import NodeWeightsReport, Stage, WeightsOrder, WeightsState
from deployments.weights_host import WeightsHost, WeightsLease
from engine.weights.weights_counts import WeightsCounts

ORDER = WeightsOrder("m", "s3://bucket/m", Rung.STAGED)
COLD = WeightsState("m", Rung.COLD, Rung.COLD)
THERE = WeightsState("m", Rung.STAGED, Rung.STAGED, revision="r", folder="/n/m", num_bytes=7)
ADDRESS = PeerAddress("10.0.0.7", 7000, b"secret")


class Weights:
    """Reaches what is ordered when it is told to."""

    def __init__(self) -> None:
        self.states: tuple[WeightsState, ...] = ()
        self.orders: list[WeightsOrder] = []
        self.leases: dict[tuple[str, str], float] = {}
        self.starts: list[tuple[str, Sequence[Stage]]] = []
        self.num_leased = 0
        self.arrived = asyncio.Event()
        self.counts = WeightsCounts()
        self.lent = ChunkServerStats()

    def order(self, order: WeightsOrder) -> WeightsState:
        self.orders.append(order)
        return COLD

    async def reach(self, order: WeightsOrder, timeout_s: float) -> WeightsState:
        await self.arrived.wait()
        return THERE

    def lease(self, model: str, holder: str, ttl_s: float) -> None:
        self.leases[model, holder] = ttl_s
        self.num_leased += 1

    def release(self, model: str, holder: str) -> None:
        self.leases.pop((model, holder), None)

    def record_start(self, model: str, stages: Sequence[Stage]) -> None:
        self.starts.append((model, stages))

    def report(self) -> NodeWeightsReport:
        return NodeWeightsReport(ADDRESS, 100, 0, self.states)

    async def close(self) -> None:
        raise AssertionError("whoever made it closes it")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_it_is_idle_since_the_last_order() -> None:
    clock = Clock()
    host = WeightsHost(Weights(), clock=clock)
    clock.now_s = 5.0
    assert host.idle_s == 5.0
    host.order([ORDER])
    clock.now_s = 7.0
    assert host.idle_s == 2.0


async def test_it_is_not_idle_while_weights_are_on_their_way_or_used() -> None:
    clock, weights = Clock(), Weights()
    host = WeightsHost(weights, clock=clock)
    clock.now_s = 5.0
    weights.states = (msgspec.structs.replace(COLD, wanted=Rung.STAGED),)
    assert host.idle_s == 0.0
    clock.now_s = 6.0
    weights.states = (msgspec.structs.replace(THERE, num_leases=1),)
    assert host.idle_s == 0.0
    clock.now_s = 9.0
    weights.states = (THERE,)
    assert host.idle_s == 3.0


async def test_weights_that_can_not_be_had_keep_nothing_alive() -> None:
    clock, weights = Clock(), Weights()
    host = WeightsHost(weights, clock=clock)
    clock.now_s = 5.0
    failed = msgspec.structs.replace(COLD, wanted=Rung.STAGED, failure="no such bucket")
    weights.states = (failed,)
    assert host.idle_s == 5.0


async def test_who_reached_weights_has_its_lease_before_anything_else_happens() -> None:
    weights = Weights()
    host = WeightsHost(weights)
    weights.states = (COLD,)
    reaching = asyncio.create_task(host.reach(ORDER, 60.0, WeightsLease("m", "m/1", 15.0)))
    await asyncio.sleep(0)
    assert weights.leases == {}
    weights.states = (THERE,)
    weights.arrived.set()
    reached = await reaching
    assert (reached.before, reached.state) == (COLD, THERE)
    assert weights.leases == {("m", "m/1"): 15.0}


async def test_who_only_looks_keeps_nothing() -> None:
    weights = Weights()
    weights.arrived.set()
    await WeightsHost(weights).reach(ORDER, 60.0)
    assert weights.num_leased == 1  # what was kept for who asks is given back by that
    assert weights.leases == {}


async def test_an_unknown_model_is_cold() -> None:
    host = WeightsHost(Weights())
    assert host.state("other") == WeightsState("other", Rung.COLD, Rung.COLD)
