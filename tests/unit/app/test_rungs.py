"""Engines that sleep, wake and leave: who gets requests meanwhile, what becomes of running ones."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pytest

from app.autoscaling_messages import ModelOrders, ScaleOrders
from app.config import GatewayConfig
from app.dispatch import MAX_MOVES, Dispatcher
from app.errors import EngineError, ModelLoadingError, OverloadedError
from app.queue import Job
from app.waiting import TICK_S
from cache_tiers.rung import Rung
from engine.messages import FinishReason, LoadView, ServiceClass, TokenDelta
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.dispatch_bench import Bench, answer_of, waiting
from tests.unit.app.fakes import FakeEngine, join, until

MOVED = FinishReason.MOVED


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Requests may wait for 30 s."""
    bench = Bench(dispatcher=None)  # type: ignore[arg-type]
    config = GatewayConfig(max_queue_len=100, max_queue_wait_s=30)
    bench.dispatcher = Dispatcher("m", config, clock=lambda: bench.now_s, first_rotation=0)
    yield bench
    bench.dispatcher.check_integrity()
    await bench.dispatcher.close()


def promise(bench: Bench, next_ready_s: float | None, sequence: int = 1) -> None:
    orders = ModelOrders("m", {}, next_ready_s=next_ready_s)
    bench.dispatcher.engines.take_orders(orders, 1, sequence)


def num_tokens_seen(job: Job) -> int:
    return sum(len(delta.token_ids) for delta in answer_of(job).deltas)


# Who gets requests.


async def test_an_engine_that_is_to_sleep_gets_nothing_and_ends_what_runs(bench: Bench) -> None:
    sleepy, awake = FakeEngine("sleepy"), waiting("awake")
    bench.add(sleepy)
    running = bench.send()
    bench.add(awake)
    sleepy.num_credits = 0
    awake.load = LoadView(num_running=99, step_time_s=1.0)
    queued = bench.send()
    assert queued.engine_id == "sleepy"
    sleepy.stand(Rung.SERVING, is_moving=True)
    assert queued.engine_id == "awake", "it is chosen again"
    assert bench.send().engine_id == "awake"
    sleepy.say(running.request_id, "a", FinishReason.STOP)
    assert answer_of(running).deltas[-1].finish_reason is FinishReason.STOP


async def test_each_engine_knows_whether_another_one_could_go_on_with_its_requests(
    bench: Bench,
) -> None:
    """Of two sets of weights, as while they are replaced."""
    a, b, newer = FakeEngine("a"), FakeEngine("b"), FakeEngine("newer")
    newer.card = msgspec.structs.replace(newer.card, root_key=b"newer weights")

    def known() -> tuple[bool, bool, bool]:
        return a.has_successor, b.has_successor, newer.has_successor

    bench.add(a)
    assert known() == (False, True, True), "those that are not there think of nothing"
    bench.add(b, newer)
    assert known() == (True, True, False)
    b.stand(Rung.SERVING, is_moving=True)
    assert known() == (False, True, False), "who goes to sleep still has a successor"
    b.stand(Rung.PARKED)
    b.stand(Rung.SERVING)
    assert known() == (True, True, False)
    a.drain()
    assert known() == (True, False, False)
    b.drain()
    assert known() == (False, False, False), "they leave at the same time"
    bench.add(third := FakeEngine("third"))
    assert known() == (True, True, False)
    assert not third.has_successor
    bench.dispatcher.engines.retire("third")
    assert known() == (False, False, False)
    bench.dispatcher.engines.reinstate("third")
    assert known() == (True, True, False)
    third.lose()
    assert known() == (False, False, False)


async def test_who_waits_goes_to_the_first_that_wakes(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a, b)
    a.stand(Rung.PARKED)
    b.stand(Rung.PARKED)
    job = bench.send()
    assert job.engine_id is None
    b.stand(Rung.PARKED, is_moving=True)
    assert job.engine_id is None
    b.stand(Rung.SERVING)
    assert list(b.requests) == [job.request_id]


async def test_a_woken_engine_hears_who_waits_for_it_now(bench: Bench) -> None:
    """It may remember the demand from before it slept."""
    engine, other = waiting("a"), waiting("b")
    bench.add(engine)
    bench.send()
    assert engine.num_wanted == 1
    engine.stand(Rung.SERVING, is_moving=True)
    bench.add(other)
    assert other.num_wanted == 1
    other.grant()
    engine.stand(Rung.PARKED)
    engine.stand(Rung.SERVING, num_credits=0)
    assert engine.num_wanted == 0


async def test_requests_wait_for_a_sleeping_fleet_that_somebody_wakes(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    engine.stand(Rung.PARKED, wake_s=3.0)
    bench.now_s += 3600  # an hour later it is as near as ever
    promise(bench, None)
    job = bench.send()
    assert bench.dispatcher.queues()[0].estimated_wait_s == pytest.approx(4.0)
    assert bench.dispatcher.demand().num_waiting == 1
    (seen,) = bench.dispatcher.demand().engines
    assert (seen.rung, seen.wake_s) == (Rung.PARKED, 3.0)
    engine.stand(Rung.SERVING)
    assert job.request_id in engine.requests


async def test_a_fleet_that_sleeps_too_deeply_is_not_waited_for(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    engine.stand(Rung.PARKED, wake_s=90.0)
    promise(bench, None)
    with pytest.raises(ModelLoadingError, match="waking up"):
        bench.send()


async def test_a_gateway_that_only_ever_saw_sleepers_can_make_prompts(bench: Bench) -> None:
    engine = FakeEngine("a")
    engine.is_accepting = False
    bench.add(engine)
    engine.stand(Rung.PARKED, wake_s=1.0)
    promise(bench, None)
    assert (await bench.dispatcher.ready_card()).engine_id == "a"
    bench.send()


# Scale to zero.


async def test_without_replicas_requests_wait_for_the_promised_one(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    engine.lose()
    bench.now_s += 7200
    with pytest.raises(ModelLoadingError):
        bench.send()
    promise(bench, 20.0)
    job = bench.send()
    bench.now_s += 5
    assert bench.dispatcher.queues()[0].estimated_wait_s == pytest.approx(15.0)
    bench.add(FakeEngine("b"))
    assert job.engine_id == "b"


async def test_what_is_promised_too_late_is_refused_with_its_time(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    engine.lose()
    promise(bench, 80.0)
    with pytest.raises(ModelLoadingError) as caught:
        bench.send()
    assert 0.7 * 80 <= int(caught.value.headers["retry-after"]) <= 1.3 * 80


async def test_after_hours_without_work_the_first_request_waits_for_a_start(bench: Bench) -> None:
    """The autoscaler has yet to hear of it."""
    engine = FakeEngine("a")
    bench.add(engine)
    engine.lose()
    bench.now_s += 7200
    promise(bench, None)
    job = bench.send()
    bench.now_s += 12
    bench.add(FakeEngine("b"))
    assert job.engine_id == "b"
    bench.dispatcher.engines.retire("b")
    assert bench.dispatcher.queues()[0].estimated_wait_s < 20, "the idle hours were no absence"


async def test_a_first_engine_that_is_promised_is_waited_for(make_edge: MakeEdge) -> None:
    edge = await make_edge()
    edge.gateway.take_orders(ScaleOrders(1, 1, (ModelOrders("m", {}, next_ready_s=0.1),)))
    asked = asyncio.create_task(edge.chat())
    report = edge.gateway.demand_report
    await until(lambda: report().models[0].num_waiting == 1)
    edge.engines["a"] = FakeEngine("a", reply="ok")
    await join(edge.gateway, "m", edge.engines)
    assert (await asked).status_code == 200
    demand = report().models[0]
    assert (demand.num_arrived, demand.num_refused, demand.num_waiting) == (1, 0, 0)


# Answers that move.


async def test_an_answer_moves_with_its_tokens_and_counts_as_no_failure(bench: Bench) -> None:
    engines = [FakeEngine(name) for name in "abcdefg"]
    bench.add(engines[0])
    job = bench.send()
    for engine, successor in pairwise(engines):
        engine.say(job.request_id, "x")
        bench.add(successor)
        engine.stand(Rung.SERVING, is_moving=True)
        engine.say(job.request_id, "y", MOVED)
        assert job.engine_id == successor.card.engine_id
    last = engines[-1].requests[job.request_id]
    assert last.num_generated_tokens == 12
    assert last.token_ids[-12:] == [token for _ in range(6) for token in last.token_ids[-2:]]
    engines[-1].say(job.request_id, "z", FinishReason.STOP)
    assert answer_of(job).error is None
    assert num_tokens_seen(job) == 13
    assert (job.num_moves, job.num_retries) == (6, 0)
    finishes = [delta.finish_reason for delta in answer_of(job).deltas]
    assert [reason for reason in finishes if reason is not None] == [FinishReason.STOP]


async def test_moves_do_not_use_up_the_attempts_that_losses_have(bench: Bench) -> None:
    a, b, c, d = (FakeEngine(name) for name in "abcd")
    bench.add(a)
    job = bench.send()
    bench.add(b)
    a.stand(Rung.SERVING, is_moving=True)
    a.say(job.request_id, "", MOVED)
    for engine, successor in ((b, c), (c, d)):
        bench.add(successor)
        engine.lose()
    assert job.engine_id == "d"
    d.lose()
    assert isinstance(answer_of(job).error, EngineError)


async def test_an_engine_that_gives_up_whatever_comes_is_not_asked_for_ever(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send()
    for _ in range(MAX_MOVES):
        engine.say(job.request_id, "", MOVED)
        assert job.is_running
    engine.say(job.request_id, "", MOVED)
    assert isinstance(answer_of(job).error, EngineError)
    assert bench.dispatcher.num_running == bench.dispatcher.num_waiting == 0


async def test_an_answer_that_moves_keeps_its_place(bench: Bench) -> None:
    a, b = FakeEngine("a"), waiting("b")
    bench.add(a)
    early = bench.send()
    a.num_credits = 0
    bench.add(b)
    a.drain()
    late = bench.send()
    a.say(early.request_id, "x", MOVED)
    b.grant()
    assert list(b.requests) == [early.request_id]
    assert late.engine_id == "b"


async def test_with_no_other_engine_it_waits_as_long_as_an_answer_may_take(bench: Bench) -> None:
    a = FakeEngine("a")
    bench.add(a)
    job = bench.send()
    a.drain()
    a.say(job.request_id, "x", MOVED)
    a.lose()
    bench.now_s += 300
    await asyncio.sleep(3 * TICK_S)
    assert answer_of(job).error is None
    bench.add(FakeEngine("b"))
    assert job.engine_id == "b"


async def test_several_samples_that_showed_nothing_start_over(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a)
    job = bench.send(num_samples=2)
    bench.add(b)
    a.drain()
    a.say(job.request_id, "", MOVED, 0)
    assert job.engine_id == "a", "one has not ended"
    a.say(job.request_id, "", MOVED, 1)
    assert job.engine_id == "b"
    assert answer_of(job).num_restarts == 1
    assert a.aborts == []


async def test_an_answer_nobody_wants_any_more_does_not_move(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a)
    job = bench.send()
    bench.add(b)
    a.drain()
    bench.dispatcher.cancel(job.request_id)
    a.send(TokenDelta(job.request_id, [], MOVED))
    assert b.requests == {}
    assert bench.dispatcher.num_running == 0


async def test_over_http_a_moved_answer_is_whole_and_counts_as_moved(make_edge: MakeEdge) -> None:
    a, b = FakeEngine("a"), FakeEngine("b", reply="Hello")
    edge = await make_edge(a)
    asked = asyncio.create_task(edge.chat())
    await until(lambda: a.requests)
    (request_id,) = a.requests
    a.say(request_id, "He")
    edge.engines["b"] = b
    await join(edge.gateway, "m", edge.engines)
    a.stand(Rung.SERVING, is_moving=True)
    a.say(request_id, "l", MOVED)
    a.stand(Rung.PARKED)
    answer = (await asked).json()
    assert answer["choices"][0]["message"]["content"] == "Hello"
    assert answer["usage"]["completion_tokens"] == 6
    page = edge.gateway.render_metrics().decode()
    assert 'headwater:requests_moved_total{model_name="m"} 1.0' in page
    assert 'headwater:engine_retries_total{model_name="m"} 0.0' in page
    assert 'headwater:engines_on_rung{model_name="m",rung="parked"} 1.0' in page
    assert 'headwater:engines_on_rung{model_name="m",rung="serving"} 1.0' in page


# Admission.


async def test_a_replica_on_its_way_shortens_the_estimate_and_the_advice(bench: Bench) -> None:
    engine = waiting("a")
    bench.add(engine)
    for _ in range(3):
        bench.send()
    for _ in range(4):
        bench.now_s += 12.0
        engine.grant()
        bench.send()
    bench.now_s += 0.1
    alone_s = bench.dispatcher.queues()[ServiceClass.INTERACTIVE].estimated_wait_s
    assert alone_s > 30
    with pytest.raises(OverloadedError, match="would wait about"):
        bench.send()
    promise(bench, 9.0)
    helped_s = bench.dispatcher.queues()[ServiceClass.INTERACTIVE].estimated_wait_s
    assert helped_s == pytest.approx(9 + (alone_s - 9) / 2)
    assert bench.send(), "by then there are two"
    while bench.dispatcher.queues()[ServiceClass.INTERACTIVE].estimated_wait_s <= 30:
        bench.send()
        bench.now_s += 0.1
    with pytest.raises(OverloadedError) as caught:
        bench.send()
    retry_s = int(caught.value.headers["retry-after"])
    assert 1 <= retry_s <= 12, "when the next replica is there"
