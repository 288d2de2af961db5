"""Who may use which replica."""

from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import GatewayConfig, PoolConfig, PoolsConfig
from app.dispatch import Dispatcher
from app.pools import Pool, Pools
from app.waiting import TICK_S
from engine.messages import CacheSnapshot, FinishReason, ServiceClass
from tests.unit.app.dispatch_bench import Bench
from tests.unit.app.fakes import FakeEngine, until

BATCH = ServiceClass.BATCH
IDS = [f"e{number}" for number in range(8)]

MakeBench = Callable[[PoolsConfig], Bench]


@pytest.fixture
async def make_bench() -> AsyncIterator[MakeBench]:
    made: list[Bench] = []

    def make(pools: PoolsConfig) -> Bench:
        bench = Bench(dispatcher=None)  # type: ignore[arg-type]
        config = GatewayConfig(max_queue_len=100, pools=pools)
        bench.dispatcher = Dispatcher("m", config, clock=lambda: bench.now_s, first_rotation=0)
        made.append(bench)
        return bench

    yield make
    for bench in made:
        bench.dispatcher.check_integrity()
        await bench.dispatcher.close()


def homes(engine_ids: Iterable[str], batch: float, long_prompts: float = 0.0) -> dict[str, Pool]:
    config = PoolsConfig(
        batch=PoolConfig(replica_share=batch), long_prompts=PoolConfig(replica_share=long_prompts)
    )
    return dict(Pools(config).homes(engine_ids))


@given(
    st.lists(st.sampled_from(IDS), unique=True, min_size=1),
    st.floats(0, 0.99),
    st.floats(0, 0.99),
)
def test_shares_are_kept_and_everybody_has_a_replica(
    ids: list[str], batch: float, long_prompts: float
) -> None:
    pools = list(homes(ids, batch, long_prompts).values())
    assert len(pools) == len(ids)
    assert Pool.SHARED in pools
    if batch and len(ids) > 1:
        assert 1 <= pools.count(Pool.BATCH) <= max(1, round(batch * len(ids)))
    assert (Pool.LONG_PROMPTS in pools) <= (long_prompts > 0)


def test_gateways_agree_and_a_new_replica_moves_at_most_one() -> None:
    before, after = homes(IDS[:7], 0.4), homes(reversed(IDS), 0.4)
    assert sum(before[id_] is not after[id_] for id_ in IDS[:7]) <= 1


async def test_batch_work_and_the_others_keep_apart(make_bench: MakeBench) -> None:
    bench = make_bench(PoolsConfig(batch=PoolConfig(replica_share=0.25)))
    bench.add(*(FakeEngine(engine_id) for engine_id in IDS))
    batch = {bench.send(token=n, service_class=BATCH).engine_id for n in range(20)}
    others = {bench.send(token=n).engine_id for n in range(100, 140)}
    assert len(batch) == 2
    assert others == set(IDS) - batch


async def test_while_no_batch_work_runs_its_replicas_are_everybodys(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(PoolsConfig(batch=PoolConfig(replica_share=0.25)))
    bench.add(*(FakeEngine(engine_id) for engine_id in IDS))
    assert {bench.send(token=n).engine_id for n in range(40)} == set(IDS)


async def test_beyond_its_limit_batch_work_waits_in_its_order(make_bench: MakeBench) -> None:
    """Without a replica of its own, it has the places that it is lent."""
    pools = PoolsConfig(batch=PoolConfig(replica_share=0, max_lent_samples=2))
    bench = make_bench(pools)
    engine = FakeEngine("a")
    bench.add(engine)
    jobs = [bench.send(service_class=BATCH) for _ in range(4)]
    assert list(engine.requests) == [job.request_id for job in jobs[:2]]
    assert engine.num_wanted == 0, "credits are for those that may use them"
    urgent = bench.send()
    assert urgent.request_id in engine.requests
    engine.say(jobs[1].request_id, "x", FinishReason.STOP)
    late = bench.send(service_class=BATCH)
    await until(lambda: jobs[2].is_running, timeout_s=20 * TICK_S)
    assert not jobs[3].is_running
    assert not late.is_running


async def test_one_request_with_more_samples_than_the_limit_gets_in_alone(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(PoolsConfig(batch=PoolConfig(replica_share=0, max_lent_samples=2)))
    bench.add(FakeEngine("a"))
    assert bench.send(service_class=BATCH, num_samples=5).is_running
    assert not bench.send(service_class=BATCH).is_running


async def test_gateways_share_the_limit(make_bench: MakeBench) -> None:
    bench = make_bench(PoolsConfig(batch=PoolConfig(replica_share=0, max_lent_samples=4)))
    engine = FakeEngine("a")
    engine.num_gateways = 2
    bench.add(engine)
    jobs = [bench.send(service_class=BATCH) for _ in range(4)]
    assert [job.is_running for job in jobs] == [True, True, False, False]


async def test_who_waited_long_may_not_take_a_place_of_the_others_either(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(PoolsConfig(batch=PoolConfig(replica_share=0.5, max_samples_per_replica=1)))
    engines = [FakeEngine("a"), FakeEngine("b")]
    bench.add(*engines)
    first, second = (bench.send(service_class=BATCH) for _ in range(2))
    bench.now_s += 20
    for engine in engines:
        engine.grant()
    assert first.is_running
    assert not second.is_running


async def test_what_is_long_counts_without_what_is_cached(make_bench: MakeBench) -> None:
    pools = PoolsConfig(long_prompts=PoolConfig(replica_share=0.5), long_prompt_tokens=300)
    bench = make_bench(pools)
    engines = [FakeEngine("a"), FakeEngine("b")]
    bench.add(*engines)
    own = bench.send(400, token=5).engine_id
    assert {bench.send(400, token=n).engine_id for n in range(6, 12)} == {own}
    (other,) = {"a", "b"} - {own}
    assert bench.send(200, token=12).engine_id == other
    cached = bench.job(400, token=13).prompt.index_keys
    engine = next(engine for engine in engines if engine.card.engine_id == other)
    bench.dispatcher.engines.on_snapshot(engine, CacheSnapshot(0, cached))
    assert bench.send(400, token=13).engine_id == other


async def test_who_waits_for_a_pool_that_is_taken_away_goes_anywhere(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(PoolsConfig(batch=PoolConfig(replica_share=0)))
    bench.add(FakeEngine("a"))
    jobs = [bench.send(service_class=BATCH) for _ in range(3)]
    bench.dispatcher.reconfigure(GatewayConfig())
    assert all(job.is_running for job in jobs)


async def test_without_a_configuration_there_is_one_pool(make_bench: MakeBench) -> None:
    bench = make_bench(PoolsConfig())
    bench.add(*(FakeEngine(engine_id) for engine_id in IDS))
    jobs = [bench.send(1900, token=n, service_class=BATCH) for n in range(16)]
    assert {job.engine_id for job in jobs} == set(IDS)
    assert {job.pool for job in jobs} == {Pool.SHARED}
