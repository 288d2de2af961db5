"""What a gateway tells the autoscaler of its requests, and that each one counts once."""

import time
from collections.abc import AsyncIterator

import pytest

from app.autoscaling_messages import (
    NUM_LENGTH_BUCKETS,
    NUM_TIME_BUCKETS,
    EngineSeen,
    ModelDemand,
)
from app.demand_meter import DemandMeter, LogHistogram
from app.errors import OverloadedError
from app.queue import Job
from engine.messages import FinishReason, ServiceClass
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.dispatch_bench import Bench, dispatch_bench, waiting
from tests.unit.app.fakes import FakeEngine, until


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with dispatch_bench() as bench:
        yield bench


def bucket_of(counts: tuple[int, ...]) -> int:
    assert sum(counts) == 1
    return counts.index(1)


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(-1, 0), (0, 0), (1, 0), (1.01, 1), (2**0.25, 1), (2, 4), (2.01, 5), (700, 38), (1e30, 80)],
)
def test_bucket_i_holds_values_up_to_two_to_the_quarter_of_i(value: float, bucket: int) -> None:
    histogram = LogHistogram(NUM_TIME_BUCKETS)
    histogram.add(value)
    assert bucket_of(histogram.counts) == bucket


async def test_a_request_counts_from_its_arrival_to_its_end(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send(100)
    demand = bench.dispatcher.demand()
    assert (demand.num_arrived, demand.num_prompt_tokens, demand.num_begun) == (1, 100, 0)
    bench.now_s = job.arrived_s + 0.5
    engine.say(job.request_id, "a")
    bench.now_s += 1.0
    engine.say(job.request_id, "bcd")
    bench.now_s += 1.0
    engine.say(job.request_id, "e", FinishReason.LENGTH)
    demand = bench.dispatcher.demand()
    assert (demand.num_begun, demand.num_ended, demand.num_generated_tokens) == (1, 1, 5)
    assert (demand.num_cached_known_tokens, demand.num_uncached_tokens) == (100, 84)
    assert bucket_of(demand.ttft_counts) == 36, "500 ms"
    assert bucket_of(demand.tpot_counts) == 36, "2 s for the four tokens after the first"
    assert bucket_of(demand.prompt_counts) == 27
    assert bucket_of(demand.answer_counts) == 10
    assert len(demand.prompt_counts) == NUM_LENGTH_BUCKETS


async def test_an_answer_that_goes_on_elsewhere_begins_and_ends_once(bench: Bench) -> None:
    a, b = FakeEngine("a"), waiting("b")
    bench.add(a)
    job = bench.send()
    a.say(job.request_id, "ab")
    bench.add(b)
    a.lose()
    assert job.engine_id == "b"
    b.grant()
    b.say(job.request_id, "c", FinishReason.STOP)
    demand = bench.dispatcher.demand()
    assert (demand.num_arrived, demand.num_begun, demand.num_ended) == (1, 1, 1)
    assert demand.num_generated_tokens == 3
    assert bucket_of(demand.answer_counts) == 7, "three tokens"


@pytest.mark.parametrize("num_samples", [1, 2])
async def test_a_request_begins_once_however_it_ends(bench: Bench, num_samples: int) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send(num_samples=num_samples)
    for index in range(num_samples):
        engine.say(job.request_id, "abc", index=index)
        engine.say(job.request_id, "", FinishReason.STOP, index)
    demand = bench.dispatcher.demand()
    assert (demand.num_begun, sum(demand.ttft_counts)) == (1, 1)
    assert bucket_of(demand.answer_counts) == 7, "three tokens, of each sample"


async def test_a_request_for_no_token_begins_when_its_prompt_is_there(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    engine.say(bench.send().request_id, "", FinishReason.LENGTH)
    assert bench.dispatcher.demand().num_begun == 1


async def test_what_waits_is_told_as_it_is_now(bench: Bench) -> None:
    bench.add(waiting("a"))
    bench.send(100)
    bench.now_s += 3.0
    bench.send(50)
    demand = bench.dispatcher.demand()
    assert (demand.num_waiting, demand.num_waiting_tokens) == (2, 150)
    assert demand.oldest_wait_s == pytest.approx(3.0)


async def test_refused_requests_have_arrived_too(bench: Bench) -> None:
    bench.add(waiting("a"))
    for _ in range(4):
        bench.send(10, service_class=ServiceClass.BATCH)
    with pytest.raises(OverloadedError):
        bench.send(10, service_class=ServiceClass.BATCH)
    bench.send(10)  # takes the place of a batch one
    demand = bench.dispatcher.demand()
    assert (demand.num_arrived, demand.num_refused, demand.num_waiting) == (6, 2, 4)


async def test_a_failure_is_an_end_and_no_refusal(bench: Bench) -> None:
    for name in "abc":
        engine = FakeEngine(name)
        bench.add(engine)
        if name == "a":
            job = bench.send()
        engine.lose()
    demand = bench.dispatcher.demand()
    assert job.num_attempts == 3
    assert (demand.num_ended, demand.num_refused, demand.num_begun) == (1, 0, 0)


async def test_who_asks_for_a_model_that_was_never_there_is_seen(make_edge: MakeEdge) -> None:
    edge = await make_edge()
    assert (await edge.chat()).status_code == 503
    (demand,) = edge.gateway.demand_report().models
    assert (demand.num_arrived, demand.num_refused, demand.num_waiting) == (1, 1, 0)
    assert (await edge.http.post("/tokenize", json={"model": "m", "prompt": "a"})).is_error
    assert edge.gateway.demand_report().models[0].num_arrived == 1, "nobody has to serve that"


async def test_a_report_names_gateway_engines_and_all_models(make_edge: MakeEdge) -> None:
    edge, other = await make_edge(FakeEngine("a")), await make_edge()
    report = edge.gateway.demand_report()
    assert report.gateway_id != other.gateway.demand_report().gateway_id
    assert report.gateway_id == edge.gateway.demand_report().gateway_id
    assert [demand.model for demand in report.models] == ["m"]
    (seen,) = report.models[0].engines
    assert (seen.engine_id, seen.rung.name, seen.is_moving) == ("a", "SERVING", False)
    assert (seen.is_draining, seen.is_seeded) == (False, True)
    edge.engines["a"].drain()
    await until(lambda: _engine_of(edge.gateway.demand_report().models[0]).is_draining)


def test_counting_costs_less_than_two_microseconds(job: Job) -> None:
    meter = DemandMeter()
    best_s = 1.0
    for _ in range(5):
        started_s = time.perf_counter()
        for _ in range(2000):
            meter.generated(job, 1)
        best_s = min(best_s, (time.perf_counter() - started_s) / 2000)
    assert best_s < 2e-6


@pytest.fixture
def job() -> Job:
    return Bench(dispatcher=None).job()  # type: ignore[arg-type]


def _engine_of(demand: ModelDemand) -> EngineSeen:
    return demand.engines[0]
