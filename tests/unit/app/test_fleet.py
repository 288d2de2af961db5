"""What the fleet believes of its engines' caches, and when it asks them."""

from collections.abc import AsyncIterator, Sequence

import pytest

from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.index_follower import DOUBT_PERIOD_S, SNAPSHOT_TIMEOUT_S
from app.queue import Job
from app.routing.candidate import Candidate, Choice, RouteRequest
from engine.messages import CacheEvents, CacheSnapshot, LoadView, Medium, TokenDelta, Usage
from tests.unit.app.dispatch_bench import Bench, dispatch_bench
from tests.unit.app.fakes import FakeEngine, ids_of


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with dispatch_bench() as bench:
        yield bench


def begin(engine: FakeEngine, job: Job, cached_tokens: int) -> None:
    """The first token, and the load view of its step."""
    usage = Usage(len(job.prompt.token_ids), cached_tokens, 1)
    engine.send(TokenDelta(job.request_id, [1], usage=usage))
    engine.step(LoadView())


async def test_a_snapshot_that_does_not_come_is_asked_for_again(bench: Bench) -> None:
    engine = FakeEngine()
    bench.add(engine)
    engine.step(LoadView(), CacheEvents(1, [], []))
    engine.step(LoadView(), CacheEvents(3, [], []))
    assert engine.num_snapshots_asked == 1
    engine.step(LoadView(), CacheEvents(4, [], []))
    assert engine.num_snapshots_asked == 1
    bench.now_s += SNAPSHOT_TIMEOUT_S
    engine.step(LoadView())
    engine.step(LoadView())
    assert engine.num_snapshots_asked == 2
    bench.dispatcher.engines.on_snapshot(engine, CacheSnapshot(4, [], is_last=False))
    bench.now_s += SNAPSHOT_TIMEOUT_S
    engine.step(LoadView())
    assert engine.num_snapshots_asked == 3, "half of a snapshot is none"
    bench.dispatcher.engines.on_snapshot(engine, CacheSnapshot(4, []))
    bench.now_s += SNAPSHOT_TIMEOUT_S
    engine.step(LoadView())
    assert engine.num_snapshots_asked == 3


@pytest.mark.parametrize(("num_tokens", "cached_tokens"), [(256, 255), (300, 288), (300, 256)])
async def test_a_prompt_that_is_cached_whole_raises_no_doubt(
    bench: Bench, num_tokens: int, cached_tokens: int
) -> None:
    engine = FakeEngine()
    bench.add(engine)
    first = bench.send(num_tokens)
    bench.dispatcher.engines.on_snapshot(engine, CacheSnapshot(0, first.prompt.index_keys))
    again = bench.send(num_tokens)
    begin(engine, again, cached_tokens)
    assert engine.num_snapshots_asked == 0


async def test_fewer_hits_than_an_engine_promised_are_doubted_now_and_then(bench: Bench) -> None:
    engine = FakeEngine()
    bench.add(engine)
    keys = bench.job(300).prompt.index_keys
    bench.dispatcher.engines.on_snapshot(engine, CacheSnapshot(0, keys))
    for num_asked, later_s in ((1, 0.0), (1, 1.0), (2, DOUBT_PERIOD_S)):
        bench.now_s += later_s
        begin(engine, bench.send(300), 0)
        assert engine.num_snapshots_asked == num_asked


async def test_predictions_are_exact_once_prompts_part_at_the_same_place(bench: Bench) -> None:
    engine = FakeEngine()
    bench.add(engine)
    shared = bench.job(300, token=5).prompt.index_keys
    bench.dispatcher.engines.on_snapshot(engine, CacheSnapshot(0, shared))
    for _ in range(120):
        job = bench.send(600, token=5)
        begin(engine, job, 18 * 16)
    assert job.predicted_cached_tokens == pytest.approx(18 * 16, abs=3)


async def test_the_last_words_of_a_connection_before_are_not_heard(bench: Bench) -> None:
    old, new = FakeEngine("a"), FakeEngine("a")
    bench.add(old)
    old.lose()
    bench.add(new)
    index = bench.dispatcher.fleet.index
    keys = bench.job(300).prompt.index_keys
    bench.dispatcher.engines.on_step(old, CacheEvents(1, keys, []))
    bench.dispatcher.engines.on_snapshot(old, CacheSnapshot(1, keys))
    bench.dispatcher.engines.on_closed(old, "again")
    assert len(index) == 0
    assert [member.client for member in bench.dispatcher.fleet] == [new]


async def test_gateways_begin_their_turns_at_different_engines() -> None:
    engines = [FakeEngine(f"e{number}") for number in range(8)]
    chosen = set()
    for _ in range(20):
        bench = Bench(Dispatcher("m", GatewayConfig()))
        bench.add(*engines)
        chosen.add(bench.send().engine_id)
        await bench.dispatcher.close()
        for engine in engines:
            engine.is_accepting = True
    assert len(chosen) > 1


async def test_an_answer_that_goes_on_is_expected_and_judged_by_its_prompt(bench: Bench) -> None:
    lost, engine = FakeEngine("a"), FakeEngine("b")
    bench.add(lost)
    job = bench.send(20)
    lost.say(job.request_id, "x" * 300)
    bench.add(engine)
    keys = job.prompt.extended(ids_of("x" * 300), 16).index_keys
    engine.step(LoadView(), CacheEvents(1, keys, []))
    lost.lose()
    assert job.engine_id == "b"
    assert job.predicted_cached_tokens == 20
    begin(engine, job, cached_tokens=20)
    assert engine.num_snapshots_asked == 0


async def test_the_policy_learns_how_old_a_view_is_and_counts_a_send_once() -> None:
    asked: list[tuple[RouteRequest, Candidate]] = []

    def policy(request: RouteRequest, candidates: Sequence[Candidate]) -> Choice:
        asked.append((request, candidates[0]))
        return Choice(candidates[0])

    bench = Bench(dispatcher=None)  # type: ignore[arg-type]
    bench.dispatcher = Dispatcher(
        "m", GatewayConfig(), clock=lambda: bench.now_s, policy=policy, rank=2
    )
    engines = [FakeEngine("a"), FakeEngine("b")]
    engines[1].num_gateways = 3
    bench.add(*engines)
    for _ in range(3):
        bench.send(100)
        bench.now_s += 1.0
    request, first = asked[-1]
    assert (request.gateways.rank, request.gateways.number) == (2, 3)
    assert request.gateways.requests_per_s > 0
    assert (first.num_in_flight, first.num_unseen) == (2, 2)
    unheard_age_s = first.age_s
    engines[0].step(LoadView(num_running=3, step_time_s=0.01))
    bench.send(100)
    _, seen = asked[-1]
    assert (seen.num_in_flight, seen.num_unseen, seen.load.num_running) == (3, 0, 3)
    assert 0 < seen.age_s < unheard_age_s
    bench.now_s += 3600
    bench.send(100)
    assert asked[-1][1].age_s < 0.2, "an engine that says nothing does nothing"
    bench.now_s -= 7200
    bench.send(100)
    assert asked[-1][1].age_s > 0, "a clock that jumps"
    await bench.dispatcher.close()


async def test_what_an_engine_learned_to_be_slow_at_reaches_the_policy() -> None:
    asked: list[Candidate] = []

    def policy(request: RouteRequest, candidates: Sequence[Candidate]) -> Choice:
        asked.extend(candidates)
        return Choice(candidates[0])

    bench = Bench(Dispatcher("m", GatewayConfig(), policy=policy))
    engines = [FakeEngine("a"), FakeEngine("b")]
    bench.add(*engines)
    engines[0].step(LoadView(prefill_base_s=0.01, prefill_token_s=0.001))
    job = bench.job(300)
    job.affinity = 7
    keys = job.prompt.index_keys
    bench.dispatcher.engines.on_snapshot(engines[1], CacheSnapshot(0, keys, medium=Medium.HOST))
    bench.dispatcher.enqueue(job)
    a, b = asked
    assert a.rates.prefill_token_s == b.rates.prefill_token_s == 0.001, "the others' mean"
    assert (a.held.longest, b.held.accelerator_tokens) == (0, 0)
    assert b.held.host_tokens >= 256
    assert a.hit_probability == 1.0
    await bench.dispatcher.close()
