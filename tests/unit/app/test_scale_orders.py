"""Orders as they are kept, passed on to engines, and believed."""

from collections.abc import AsyncIterator

import pytest

from app.autoscaling_messages import ModelOrders, ScaleOrders
from app.scale_orders import STALE_S, LastOrders
from cache_tiers.rung import Rung
from engine.rung_messages import RungOrder
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.dispatch_bench import Bench, dispatch_bench
from tests.unit.app.fakes import FakeEngine


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with dispatch_bench() as bench:
        yield bench


def order(bench: Bench, sequence: int, rung: Rung, *names: str, epoch: int = 1) -> None:
    rungs = dict.fromkeys(names or ("a",), rung)
    bench.dispatcher.engines.take_orders(ModelOrders("m", rungs), epoch, sequence)


async def test_only_news_is_passed_on(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    order(bench, 1, Rung.PARKED)
    engine.stand(Rung.SERVING, is_moving=True)
    order(bench, 2, Rung.PARKED)
    engine.stand(Rung.PARKED)
    order(bench, 3, Rung.PARKED)
    assert engine.rung_orders == [RungOrder(Rung.PARKED, 1, 1)]
    order(bench, 4, Rung.SERVING)
    assert engine.rung_orders[1:] == [RungOrder(Rung.SERVING, 1, 4)]


async def test_an_engine_that_heads_elsewhere_is_told_again(bench: Bench) -> None:
    """Another gateway's older order may have come last, or this one was lost with a process."""
    engine = FakeEngine("a")
    bench.add(engine)
    order(bench, 1, Rung.PARKED)
    order(bench, 2, Rung.PARKED)
    assert [each.sequence for each in engine.rung_orders] == [1, 2]


async def test_older_orders_change_nothing(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    order(bench, 5, Rung.SERVING, epoch=2)
    order(bench, 9, Rung.PARKED, epoch=1)
    order(bench, 4, Rung.PARKED, epoch=2)
    assert [each.rung for each in engine.rung_orders] == [Rung.SERVING]


@pytest.mark.parametrize("epoch", [2, 2**64 - 1])
async def test_an_epoch_that_is_not_heard_any_more_gives_way_to_an_earlier_one(
    bench: Bench, epoch: int
) -> None:
    """As of an autoscaler that starts again with a clock that was set back."""
    engine = FakeEngine("a")
    bench.add(engine)
    order(bench, 2**64 - 1, Rung.SERVING, epoch=epoch)
    bench.now_s += STALE_S
    order(bench, 1, Rung.PARKED, epoch=1)
    assert [each.rung for each in engine.rung_orders] == [Rung.SERVING]
    bench.now_s += 0.1
    order(bench, 1, Rung.PARKED, epoch=epoch)
    assert [each.rung for each in engine.rung_orders] == [Rung.SERVING], "late, of the same one"
    order(bench, 1, Rung.PARKED, epoch=1)
    assert engine.rung_orders[1:] == [RungOrder(Rung.PARKED, 1, 1)]


async def test_nobody_is_told_what_was_ordered_long_ago(bench: Bench) -> None:
    order(bench, 1, Rung.PARKED, "a")
    bench.now_s += STALE_S + 0.1
    engine = FakeEngine("a")
    bench.add(engine)
    assert engine.rung_orders == []


async def test_an_engine_that_connects_later_hears_the_newest_order(bench: Bench) -> None:
    order(bench, 1, Rung.PARKED, "a")
    engine, other = FakeEngine("a"), FakeEngine("b")
    bench.add(engine, other)
    assert engine.rung_orders == [RungOrder(Rung.PARKED, 1, 1)]
    assert other.rung_orders == [], "who isn't named stays as it is"


async def test_an_engine_that_leaves_is_left_alone(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    engine.drain()
    order(bench, 1, Rung.PARKED)
    assert engine.rung_orders == []


async def test_orders_for_other_models_are_ignored(make_edge: MakeEdge) -> None:
    engine = FakeEngine("a")
    edge = await make_edge(engine)
    models = (ModelOrders("other", {"a": Rung.PARKED}), ModelOrders("m", {"a": Rung.PARKED}))
    edge.gateway.take_orders(ScaleOrders(3, 7, models))
    assert engine.rung_orders == [RungOrder(Rung.PARKED, 3, 7)]


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def test_a_promise_runs_down_and_is_kept_for_a_while() -> None:
    clock = Clock()
    orders = LastOrders(clock)
    orders.take(ModelOrders("m", {}, next_ready_s=5.0), 1, 1)
    clock.now_s += 2.0
    assert orders.next_ready_s == pytest.approx(3.0)
    clock.now_s += 4.0
    assert orders.next_ready_s == 0.0, "it is late, not gone"
    clock.now_s += STALE_S
    assert not orders.is_heard
    assert orders.next_ready_s is None, "nobody is there to keep it"


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -1.0])
def test_a_promise_that_is_no_time_is_none(nonsense: float) -> None:
    orders = LastOrders(Clock())
    orders.take(ModelOrders("m", {}, next_ready_s=nonsense), 1, 1)
    assert orders.next_ready_s is None


def test_no_replica_is_ordered_onto_a_rung_without_replicas() -> None:
    orders = LastOrders(Clock())
    orders.take(ModelOrders("m", {"a": Rung.STAGED}), 1, 1)
    assert orders.rung_order("a") is None
