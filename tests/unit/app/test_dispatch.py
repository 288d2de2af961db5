"""From a waiting request to an engine, and what becomes of it there."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.dispatch import MAX_ATTEMPTS
from app.errors import ApiError, EngineError, ModelLoadingError, OverloadedError
from cache_tiers.keys import BlockKey, block_keys
from engine.messages import Abort, FinishReason, LoadView, ServiceClass, TokenDelta
from tests.unit.app.dispatch_bench import (
    Bench,
    Recorder,
    answer_of,
    dispatch_bench,
    waiting,
)
from tests.unit.app.fakes import FakeEngine, ids_of, until

INTERACTIVE, STANDARD, BATCH = ServiceClass


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with dispatch_bench() as bench:
        yield bench


async def test_a_request_waits_for_a_credit_and_announces_its_demand(bench: Bench) -> None:
    engine = waiting("e0")
    bench.add(engine)
    first, second = bench.send(), bench.send()
    assert engine.demands == [1, 2]
    assert not engine.requests
    engine.grant()
    assert list(engine.requests) == [first.request_id]
    assert engine.num_wanted == 1
    engine.grant()
    assert list(engine.requests) == [first.request_id, second.request_id]
    assert engine.num_wanted == 0


async def test_the_submitted_request_carries_prompt_keys_and_the_time_left(bench: Bench) -> None:
    engine = waiting("e0")
    bench.add(engine)
    job = bench.send(40)
    bench.now_s += 5
    engine.grant()
    request = engine.requests[job.request_id]
    assert request.token_ids == job.prompt.token_ids
    assert request.block_keys == job.prompt.block_keys
    assert request.timeout_s == pytest.approx(595)


async def test_without_an_engine_the_model_is_loading(bench: Bench) -> None:
    with pytest.raises(ModelLoadingError) as caught:
        bench.send()
    assert caught.value.status == 503
    assert int(caught.value.headers["retry-after"]) <= 120


async def test_a_full_queue_refuses_and_then_takes_again(bench: Bench) -> None:
    engine = waiting("e0")
    bench.add(engine)
    for _ in range(4):
        bench.send()
    with pytest.raises(OverloadedError) as caught:
        bench.send()
    assert "retry-after" in caught.value.headers
    engine.grant()
    bench.send()


async def test_classes_go_first_by_their_delay(bench: Bench) -> None:
    engine = waiting("e0")
    bench.add(engine)
    batch, standard, interactive = (
        bench.send(service_class=kind) for kind in (BATCH, STANDARD, INTERACTIVE)
    )
    assert [queue.depth for queue in bench.dispatcher.queues()] == [1, 1, 1]
    for job in (interactive, standard, batch):
        engine.grant()
        assert list(engine.requests)[-1] == job.request_id
        assert engine.requests[job.request_id].service_class is job.service_class


async def test_who_has_waited_longer_than_the_delay_is_not_overtaken(bench: Bench) -> None:
    engine = waiting("e0")
    bench.add(engine)
    standard = bench.send(service_class=STANDARD)
    bench.now_s += 9.9
    early = bench.send(service_class=INTERACTIVE)
    bench.now_s += 0.2
    late = bench.send(service_class=INTERACTIVE)
    engine.grant(3)
    assert list(engine.requests) == [early.request_id, standard.request_id, late.request_id]


async def test_a_full_queue_takes_urgent_requests_in_place_of_the_last_batch_one(
    bench: Bench,
) -> None:
    bench.add(waiting("e0"))
    jobs = [bench.send(service_class=BATCH) for _ in range(3)] + [
        bench.send(service_class=STANDARD)
    ]
    urgent = bench.send(service_class=INTERACTIVE)
    assert [answer_of(job).error is None for job in jobs] == [True, True, False, True]
    error = answer_of(jobs[2]).error
    assert isinstance(error, OverloadedError)
    assert 1 <= int(error.headers["retry-after"]) <= 120
    assert answer_of(urgent).error is None
    with pytest.raises(OverloadedError):
        bench.send(service_class=BATCH)
    bench.dispatcher.check_integrity()


async def test_who_would_wait_too_long_is_refused_at_once(bench: Bench) -> None:
    engine = waiting("e0")
    bench.add(engine)
    for _ in range(3):
        bench.send(service_class=STANDARD)
    for _ in range(4):
        bench.now_s += 6.0
        engine.grant()
        bench.send(service_class=STANDARD)
    bench.now_s += 0.1
    # One left every 6 s, and three wait.
    assert bench.dispatcher.queues()[STANDARD].estimated_wait_s == pytest.approx(24, rel=0.2)
    with pytest.raises(OverloadedError, match="would wait about") as caught:
        bench.send(service_class=STANDARD)
    assert 15 <= int(caught.value.headers["retry-after"]) <= 36
    assert int(caught.value.headers["retry-after-ms"]) >= 15_000


async def test_who_waits_too_long_gets_504_and_leaves_the_queue(bench: Bench) -> None:
    engine = waiting("e0")
    bench.add(engine)
    job = bench.send()
    bench.now_s += 10.1
    await until(lambda: answer_of(job).error is not None)
    error = answer_of(job).error
    assert error is not None
    assert error.status == 504
    assert engine.demands[-1] == 0
    engine.grant()
    assert not engine.requests


@pytest.mark.parametrize("leave", ["lose", "drain", "retire"])
async def test_requests_waiting_for_an_engine_that_leaves_go_elsewhere(
    bench: Bench, leave: str
) -> None:
    a, b = waiting("a"), waiting("b")
    b.load = LoadView(num_running=5, step_time_s=1.0)
    bench.add(a, b)
    job = bench.send()
    assert job.engine_id == "a"
    if leave == "lose":
        a.lose()
    elif leave == "drain":
        a.is_accepting = False
        bench.dispatcher.engines.on_draining(a)
    else:
        bench.dispatcher.engines.retire("a")
    assert job.engine_id == "b"
    b.grant()
    assert job.request_id in b.requests


async def test_a_request_lost_before_its_first_token_starts_over_elsewhere(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a, b)
    job = bench.send()
    first, second = (a, b) if job.engine_id == "a" else (b, a)
    first.lose()
    assert job.request_id in second.requests
    assert not answer_of(job).deltas
    second.say(job.request_id, "hi", FinishReason.STOP)
    assert [delta.finish_reason for delta in answer_of(job).deltas] == [FinishReason.STOP]


async def test_a_request_lost_with_the_last_engine_waits_for_the_next(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a)
    job = bench.send()
    a.lose()
    assert job.engine_id is None
    bench.add(b)
    assert job.request_id in b.requests


async def test_a_request_that_fails_everywhere_fails(bench: Bench) -> None:
    engines = [FakeEngine(f"e{number}") for number in range(MAX_ATTEMPTS + 1)]
    bench.add(*engines)
    job = bench.send()
    for _ in range(MAX_ATTEMPTS):
        next(engine for engine in engines if engine.sinks).lose()
    assert isinstance(answer_of(job).error, EngineError)
    assert not any(engine.sinks for engine in engines)


async def test_an_answer_goes_on_where_its_engine_was_lost(bench: Bench) -> None:
    a, b, c = FakeEngine("a"), FakeEngine("b"), FakeEngine("c")
    bench.add(a)
    job = bench.send(30)
    a.say(job.request_id, "one ")
    a.say(job.request_id, "two ")
    bench.add(b)
    a.lose()
    assert (answer_of(job).num_restarts, answer_of(job).error) == (0, None)
    request = b.requests[job.request_id]
    assert request.token_ids == [7] * 30 + ids_of("one two ")
    assert request.num_generated_tokens == len("one two ")
    assert request.block_keys == block_keys(BlockKey(request.root_key), request.token_ids, 16)
    assert request.sampling == a.requests[job.request_id].sampling
    bench.add(c)
    b.say(job.request_id, "three ")
    b.lose()
    request = c.requests[job.request_id]
    assert request.token_ids == [7] * 30 + ids_of("one two three ")
    assert request.num_generated_tokens == len("one two three ")
    c.say(job.request_id, "four", FinishReason.STOP)
    token_ids = [id_ for delta in answer_of(job).deltas for id_ in delta.token_ids]
    assert token_ids == ids_of("one two three four")
    assert [delta.finish_reason for delta in answer_of(job).deltas][-2:] == [
        None,
        FinishReason.STOP,
    ]
    bench.dispatcher.check_integrity()


async def test_an_answer_that_kills_its_engines_does_not_kill_all(bench: Bench) -> None:
    engines = [FakeEngine(f"e{number}") for number in range(MAX_ATTEMPTS + 1)]
    bench.add(*engines)
    job = bench.send()
    for _ in range(MAX_ATTEMPTS):
        engine = next(engine for engine in engines if engine.sinks)
        engine.say(job.request_id, "x")
        engine.lose()
    assert isinstance(answer_of(job).error, EngineError)
    assert sum(bool(engine.requests) for engine in engines) == MAX_ATTEMPTS


async def test_a_text_that_is_complete_is_not_gone_on_with(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a)
    job = bench.send()
    a.say(job.request_id, "stop")
    answer_of(job).is_missing_text = False
    bench.add(b)
    a.lose()
    assert answer_of(job).deltas[-1].finish_reason is FinishReason.ERROR
    assert not b.requests


async def test_what_waits_for_its_second_engine_can_be_cancelled(bench: Bench) -> None:
    a = FakeEngine("a")
    bench.add(a)
    job = bench.send()
    a.say(job.request_id, "x")
    a.lose()
    assert bench.dispatcher.num_waiting == 1
    assert not bench.dispatcher.cancel(job.request_id)
    assert bench.dispatcher.num_waiting == 0
    bench.dispatcher.check_integrity()


async def test_after_the_first_token_a_lost_sample_is_told_to_nobody_else(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a, b)
    jobs = [bench.send(num_samples=2), bench.send(num_samples=2)]
    assert {job.engine_id for job in jobs} == {"a", "b"}
    for job in jobs:
        (a if job.engine_id == "a" else b).say(job.request_id, "x")
    a.lose()
    hit = next(job for job in jobs if job.engine_id == "a")
    other = next(job for job in jobs if job.engine_id == "b")
    assert answer_of(hit).deltas[-1].finish_reason is FinishReason.ERROR
    assert answer_of(other).deltas[-1].finish_reason is None
    b.say(other.request_id, "y", FinishReason.STOP)
    assert answer_of(other).deltas[-1].finish_reason is FinishReason.STOP


async def test_whole_samples_that_are_lost_half_way_start_over_elsewhere(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a, b)
    job = bench.send(num_samples=2, is_whole=True)
    first, second = (a, b) if job.engine_id == "a" else (b, a)
    first.say(job.request_id, "half")
    first.lose()
    assert job.request_id in second.requests
    assert (answer_of(job).num_restarts, answer_of(job).deltas) == (1, [])
    assert job.num_attempts == 2


async def test_a_lost_sample_ends_the_others_before_all_start_over(bench: Bench) -> None:
    """Else their last deltas would be taken for those of the next attempt."""
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send(num_samples=3, is_whole=True)
    engine.say(job.request_id, "x", FinishReason.LENGTH, index=2)
    engine.say_ids(job.request_id, [], FinishReason.ERROR, index=1)
    assert engine.aborts == [Abort(job.request_id)]
    assert job.num_attempts == 1, "sample 0 has not ended"
    engine.say(job.request_id, "late", index=0)
    assert [delta.index for delta in answer_of(job).deltas] == [2], "it may show what becomes void"
    await until(lambda: job.num_attempts == 2)
    assert answer_of(job).deltas == []
    assert engine.samples[job.request_id] == {0, 1, 2}


async def test_who_cancels_amid_a_loss_still_hears_the_counts(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send(num_samples=2, is_whole=True)
    engine.say_ids(job.request_id, [], FinishReason.ERROR, index=1)
    bench.dispatcher.cancel(job.request_id)
    await until(lambda: not engine.sinks)
    assert [delta.finish_reason for delta in answer_of(job).deltas] == [FinishReason.ABORT]
    assert job.num_attempts == 1


async def test_a_request_ends_with_the_last_of_its_samples(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send(num_samples=2)
    assert engine.requests[job.request_id].num_samples == 2
    engine.say(job.request_id, "x", FinishReason.STOP, index=1)
    assert bench.dispatcher.num_running == 1
    engine.say(job.request_id, "y", FinishReason.LENGTH, index=0)
    assert bench.dispatcher.num_running == 0
    assert [delta.index for delta in answer_of(job).deltas] == [1, 0]


async def test_a_refused_request_is_not_tried_elsewhere(bench: Bench) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    bench.add(a, b)
    job = bench.send(num_samples=2)
    engine = a if job.engine_id == "a" else b
    refusal = TokenDelta(job.request_id, [], FinishReason.ERROR, error="no", is_refused=True)
    engine.send(refusal)
    assert answer_of(job).deltas == [refusal]
    assert len(a.requests) + len(b.requests) == 1
    assert bench.dispatcher.num_running == 0


async def test_several_jobs_are_taken_together_or_not_at_all(bench: Bench) -> None:
    bench.add(waiting("e0"))
    bench.send()
    with pytest.raises(OverloadedError):
        bench.dispatcher.enqueue(*(bench.job() for _ in range(4)))
    assert bench.dispatcher.num_waiting == 1
    bench.dispatcher.enqueue(*(bench.job() for _ in range(3)))
    assert bench.dispatcher.num_waiting == 4


async def test_a_job_whose_answer_failed_with_another_is_left_alone(bench: Bench) -> None:
    """Prompts of one request wait together, and the first that waited too long ends them all."""
    bench.add(waiting("a"))
    jobs = [bench.job(), bench.job()]
    for job in jobs:
        job.answer = CancelsAll(bench, [job.request_id for job in jobs])
    bench.dispatcher.enqueue(*jobs)
    bench.now_s += 10.1
    await until(lambda: bench.dispatcher.num_waiting == 0)
    assert sum(answer_of(job).error is not None for job in jobs) == 1
    bench.dispatcher.check_integrity()


async def test_prompts_of_one_request_make_room_together(bench: Bench) -> None:
    bench.add(waiting("a"))
    jobs = [bench.job() for _ in range(4)]
    for job in jobs:
        job.service_class = BATCH
        job.answer = CancelsAll(bench, [job.request_id for job in jobs])
    bench.dispatcher.enqueue(*jobs)
    urgent = [bench.job(), bench.job()]
    bench.dispatcher.enqueue(*urgent)
    assert [answer_of(job).error is None for job in jobs] == [True, True, True, False]
    assert bench.dispatcher.num_waiting == len(urgent)
    bench.dispatcher.check_integrity()


async def test_an_answer_that_lost_its_engine_is_not_displaced(bench: Bench) -> None:
    lost = FakeEngine("a")
    bench.add(lost)
    begun = bench.send(service_class=BATCH)
    bench.add(waiting("b"))
    lost.say(begun.request_id, "shown ")
    lost.lose()
    for _ in range(3):
        bench.send()
    with pytest.raises(OverloadedError):
        bench.send()
    assert answer_of(begun).error is None
    bench.dispatcher.check_integrity()


class CancelsAll(Recorder):
    """Like the answer of several prompts."""

    def __init__(self, bench: Bench, request_ids: list[str]) -> None:
        super().__init__()
        self._bench = bench
        self._request_ids = request_ids

    def fail(self, error: ApiError) -> None:
        super().fail(error)
        for request_id in self._request_ids:
            self._bench.dispatcher.cancel(request_id)


async def test_a_cancelled_request_is_aborted_and_not_started_over(bench: Bench) -> None:
    engine, other = FakeEngine("a"), FakeEngine("b")
    bench.add(engine)
    job = bench.send()
    bench.add(other)
    bench.dispatcher.cancel(job.request_id)
    assert engine.aborts == [Abort(job.request_id)]
    await until(lambda: not engine.sinks)
    assert not other.requests
    assert bench.dispatcher.num_running == 0


async def test_a_cancelled_waiting_request_takes_its_demand_back(bench: Bench) -> None:
    engine = waiting("a")
    bench.add(engine)
    job = bench.send()
    bench.dispatcher.cancel(job.request_id)
    assert engine.demands == [1, 0]
    engine.grant()
    assert not engine.requests


async def test_a_retired_engine_finishes_what_runs_and_is_closed(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send()
    bench.dispatcher.engines.retire("a")
    await asyncio.sleep(0)
    assert engine.is_accepting, "closed with a request running"
    engine.say(job.request_id, "bye", FinishReason.STOP)
    await until(lambda: not engine.is_accepting)
    assert answer_of(job).deltas[-1].finish_reason is FinishReason.STOP
    assert len(bench.dispatcher.fleet) == 0


async def test_who_waits_past_the_deadline_gets_504_before_the_longest_wait(bench: Bench) -> None:
    bench.add(waiting("a"))
    job = bench.send()
    job.deadline_s = bench.now_s + 1
    bench.now_s += 1.5
    await until(lambda: answer_of(job).error is not None)
    error = answer_of(job).error
    assert error is not None
    assert error.status == 504


async def test_closing_ends_what_is_open(bench: Bench) -> None:
    engine, idle = FakeEngine("a", num_credits=1), waiting("b")
    idle.load = LoadView(num_running=5, step_time_s=1.0)
    bench.add(engine, idle)
    jobs: list[Any] = [bench.send(), bench.send()]
    await bench.dispatcher.close()
    assert all(answer_of(job).error is not None for job in jobs)


async def test_a_request_that_waits_anew_has_not_been_submitted(bench: Bench) -> None:
    """Its wait would come out negative in the metrics."""
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send()
    assert job.request_id in engine.requests
    bench.now_s += 1
    engine.lose()
    assert job.submitted_s is None
    assert job.queued_s == bench.now_s
