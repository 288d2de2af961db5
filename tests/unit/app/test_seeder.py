"""A new engine gets the hottest prefixes first, and those of one that leaves live on."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.queue import Job
from app.seeder import HURRY_WAIT_S, MAX_SEEDING_S
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from engine.messages import (
    CacheEvents,
    CacheSnapshot,
    EngineRequest,
    FinishReason,
    LoadView,
    ServiceClass,
)
from tests.unit.app.dispatch_bench import Bench
from tests.unit.app.fakes import FakeEngine, make_card, until

LOAD = LoadView(prefill_base_s=0.001, prefill_token_s=0.0001, prefill_tokens_per_s=10_000.0)
FAST_NODE = PeerAddress("host", 1, b"")


def make_bench(rank: int = 0) -> Bench:
    bench = Bench(dispatcher=None)  # type: ignore[arg-type]
    config = GatewayConfig(max_queue_len=50, max_queue_wait_s=30)
    bench.dispatcher = Dispatcher(
        "m", config, clock=lambda: bench.now_s, first_rotation=0, rank=rank
    )
    return bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = make_bench()
    yield bench
    bench.dispatcher.check_integrity()
    await bench.dispatcher.close()


def engine_with_tiers(name: str) -> FakeEngine:
    return FakeEngine(card=msgspec.structs.replace(make_card(name), node_cache=FAST_NODE))


def keys_of(job: Job) -> list[bytes]:
    return job.prompt.index_keys


def warm(
    bench: Bench,
    engine: FakeEngine,
    *,
    token: int = 7,
    num_tokens: int = 600,
    sequence: int = 1,
) -> Job:
    """The only engine serves a prompt until it is a hot prefix; the first of these jobs."""
    jobs: list[Job] = []
    for _ in range(5):
        job = bench.send(num_tokens, token=token)
        engine.say(job.request_id, "a", FinishReason.STOP)
        engine.step(LOAD, None if jobs else CacheEvents(sequence, keys_of(job), []))
        jobs.append(job)
    return jobs[0]


def seeds_of(engine: FakeEngine) -> list[EngineRequest]:
    return [request for id_, request in engine.requests.items() if id_.startswith("seed-")]


def is_counted(bench: Bench, engine: FakeEngine) -> bool:
    member = bench.dispatcher.fleet.get(engine.card.engine_id)
    assert member is not None
    (seen,) = [e for e in bench.dispatcher.demand().engines if e.engine_id == member.engine_id]
    assert seen.is_seeded == member.is_seeded
    return member.is_seeded


def send_snapshot(bench: Bench, engine: FakeEngine, keys: list[bytes]) -> None:
    bench.dispatcher.engines.on_snapshot(engine, CacheSnapshot(0, keys))


async def test_a_new_engine_counts_once_the_hot_prefixes_are_there(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old)
    job = warm(bench, old)
    bench.add(new)
    assert not is_counted(bench, new)
    assert seeds_of(new) == [], "what it holds is not known yet"
    send_snapshot(bench, new, [])
    (seed,) = seeds_of(new)
    assert seed.token_ids == job.prompt.token_ids[:512]
    assert seed.block_keys == job.prompt.block_keys[:32]
    assert (seed.sampling.max_tokens, seed.service_class) == (0, ServiceClass.BATCH)
    assert bench.send(20, token=3).engine_id == "old"
    new.say(seed.request_id, "", FinishReason.LENGTH)
    await until(lambda: is_counted(bench, new))
    assert bench.dispatcher.seeder.num_seeded == 1
    new.step(LOAD)
    assert bench.send(20, token=4).engine_id == "new"


async def test_seeds_are_no_demand_and_nobody_pays(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old)
    warm(bench, old)
    before = bench.dispatcher.demand()
    bench.add(new)
    send_snapshot(bench, new, [])
    (seed,) = seeds_of(new)
    new.say(seed.request_id, "", FinishReason.LENGTH)
    after = bench.dispatcher.demand()
    assert (after.num_arrived, after.num_begun, after.num_ended, after.num_prompt_tokens) == (
        before.num_arrived,
        before.num_begun,
        before.num_ended,
        before.num_prompt_tokens,
    )
    assert after.ttft_counts == before.ttft_counts


async def test_with_nothing_to_seed_it_counts_at_once(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old, new)
    assert is_counted(bench, new)


async def test_what_its_snapshot_shows_is_not_seeded_again(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old)
    job = warm(bench, old)
    bench.add(new)
    send_snapshot(bench, new, keys_of(job))
    assert is_counted(bench, new)
    assert seeds_of(new) == []


async def test_the_only_engine_counts_at_once(bench: Bench) -> None:
    old, new, third = FakeEngine("old"), FakeEngine("new"), FakeEngine("third")
    bench.add(old)
    warm(bench, old)
    old.lose()
    bench.add(new)
    assert is_counted(bench, new)
    bench.add(third)
    assert not is_counted(bench, third)
    new.drain()
    assert is_counted(bench, third), "nobody else is left"


async def test_whatever_is_missing_it_counts_after_a_while(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old)
    warm(bench, old)
    bench.add(new)
    bench.now_s += MAX_SEEDING_S / 2
    await until(lambda: not is_counted(bench, new))
    bench.now_s += MAX_SEEDING_S / 2
    await until(lambda: is_counted(bench, new))


async def test_when_requests_wait_it_counts_at_once(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old)
    warm(bench, old)
    old.num_credits = 0
    old.step(LoadView(num_running=50, step_time_s=1.0, prefill_token_s=0.0001))
    bench.add(new)
    job = bench.send()
    assert job.engine_id == "old", "it may have a credit in a moment"
    assert not is_counted(bench, new)
    bench.now_s += HURRY_WAIT_S
    await until(lambda: is_counted(bench, new))
    await until(lambda: job.request_id in new.requests)


async def test_seeds_wait_for_credits_behind_requests(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new", num_credits=0)
    bench.add(old)
    warm(bench, old)
    bench.add(new)
    send_snapshot(bench, new, [])
    assert new.num_wanted == 1, "the engine is asked for a credit"
    new.grant()
    assert len(seeds_of(new)) == 1
    assert new.num_wanted == 0


async def test_another_gateway_looks_on() -> None:
    bench = make_bench(rank=1)
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old)
    job = warm(bench, old)
    bench.add(new)
    send_snapshot(bench, new, [])
    assert not is_counted(bench, new)
    new.step(LOAD, CacheEvents(1, keys_of(job), []))
    await until(lambda: is_counted(bench, new))
    assert new.requests == {}
    await bench.dispatcher.close()


async def test_a_woken_engine_is_seeded_as_a_new_one(bench: Bench) -> None:
    old, sleeper = FakeEngine("old"), FakeEngine("sleeper")
    bench.add(old)
    warm(bench, old)
    bench.add(sleeper)
    sleeper.stand(Rung.PARKED)
    assert is_counted(bench, sleeper), "seeds need an engine that is awake"
    sleeper.stand(Rung.SERVING)
    assert not is_counted(bench, sleeper)
    (seed,) = seeds_of(sleeper)
    sleeper.say(seed.request_id, "", FinishReason.LENGTH)
    await until(lambda: is_counted(bench, sleeper))


async def test_a_seed_that_fails_holds_nobody_up(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old)
    warm(bench, old)
    bench.add(new)
    send_snapshot(bench, new, [])
    (seed,) = seeds_of(new)
    new.say(seed.request_id, "", FinishReason.ERROR)
    await until(lambda: is_counted(bench, new))
    assert bench.dispatcher.seeder.num_seeded == 0
    assert bench.dispatcher.num_running == 0


async def test_a_new_engine_pulls_from_the_node_that_has_the_prefix(bench: Bench) -> None:
    old, new = engine_with_tiers("old"), engine_with_tiers("new")
    bench.add(old)
    warm(bench, old, num_tokens=1500)
    bench.add(new)
    send_snapshot(bench, new, [])
    (seed,) = seeds_of(new)
    assert seed.peer == FAST_NODE


@pytest.mark.parametrize("how", ["drain", "sleep"])
async def test_what_only_a_leaving_engine_holds_lives_on(bench: Bench, how: str) -> None:
    leaving, staying = FakeEngine("leaving"), FakeEngine("staying")
    bench.add(leaving)
    job = warm(bench, leaving)
    bench.add(staying)
    send_snapshot(bench, staying, keys_of(job))
    staying.step(LOAD, CacheEvents(1, [], keys_of(job)))
    if how == "drain":
        leaving.drain()
    else:
        leaving.stand(Rung.SERVING, is_moving=True)
    (seed,) = seeds_of(staying)
    assert seed.token_ids == job.prompt.token_ids[:512]
    assert is_counted(bench, staying)


async def test_what_others_hold_needs_no_heir(bench: Bench) -> None:
    leaving, staying = FakeEngine("leaving"), FakeEngine("staying")
    bench.add(leaving)
    job = warm(bench, leaving)
    bench.add(staying)
    send_snapshot(bench, staying, keys_of(job))
    leaving.drain()
    assert seeds_of(staying) == []


async def test_what_takes_too_long_is_left_out_and_the_rest_comes(bench: Bench) -> None:
    old, new = FakeEngine("old"), FakeEngine("new")
    bench.add(old)
    short = warm(bench, old, token=1, num_tokens=300)
    warm(bench, old, token=2, num_tokens=1900, sequence=2)
    slow = LoadView(prefill_base_s=0.001, prefill_token_s=0.002, prefill_tokens_per_s=500.0)
    old.step(slow)
    bench.add(new)
    send_snapshot(bench, new, [])
    (seed,) = seeds_of(new)
    assert seed.token_ids == short.prompt.token_ids[:256]


@pytest.mark.parametrize(("rank", "submits"), [(0, True), (3, False)])
async def test_one_gateway_seeds_for_all(rank: int, submits: bool) -> None:
    bench = make_bench(rank=rank)
    assert bench.dispatcher.seeder.submits == submits
    bench.dispatcher.reconfigure(GatewayConfig(cells_per_gateway=2))
    assert bench.dispatcher.seeder.submits, "with cells none is connected to all engines"
    await bench.dispatcher.close()


async def test_routers_that_send_nothing_seed_nothing() -> None:
    bench = make_bench(rank=-1)
    bench.dispatcher.reconfigure(GatewayConfig(cells_per_gateway=2))
    assert not bench.dispatcher.seeder.submits
    await bench.dispatcher.close()
