"""Which engine a request waits for and goes to, as loads and prefixes change."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.errors import WeightsReplacedError
from app.waiting import TICK_S, WEIGHTS_GONE_S
from engine.messages import CacheEvents, LoadView
from tests.unit.app.dispatch_bench import Bench, answer_of, dispatch_bench, waiting
from tests.unit.app.fakes import FakeEngine, make_card, until


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with dispatch_bench() as bench:
        yield bench


async def test_after_half_the_wait_a_request_takes_any_engines_credit(bench: Bench) -> None:
    """Without that, it would stand behind those that came later but chose the free engine."""
    slow, fast = waiting("slow"), waiting("fast")
    fast.load = LoadView(num_running=50, step_time_s=1.0)
    bench.add(slow, fast)
    old = bench.send()
    assert old.engine_id == "slow"
    bench.now_s += 5.1
    fast.load, slow.load = slow.load, fast.load
    young = bench.send()
    assert young.engine_id == "fast"
    old_choice = old.engine_id
    fast.grant()
    assert list(fast.requests) == [old.request_id], old_choice
    assert slow.demands == [1, 0]
    assert fast.num_wanted == 1, "the engine forgot the one that still waits for it"
    fast.grant()
    assert young.request_id in fast.requests


async def test_a_waiting_request_is_chosen_again_when_loads_change(bench: Bench) -> None:
    a, b = waiting("a"), waiting("b")
    b.load = LoadView(num_running=5, step_time_s=1.0)
    bench.add(a, b)
    job = bench.send()
    assert job.engine_id == "a"
    a.load, b.load = LoadView(num_running=50, step_time_s=1.0), LoadView()
    await until(lambda: job.engine_id == "b")
    assert (a.demands, b.demands) == ([1, 0], [1])


async def test_equal_prefixes_go_to_the_same_engine_and_others_spread(bench: Bench) -> None:
    engines = {name: FakeEngine(name) for name in ("a", "b")}
    bench.add(*engines.values())
    first = bench.send(600, token=1)
    bench.now_s += 1
    for engine in engines.values():
        engine.step(LoadView(num_blocks=1000, num_free_blocks=1000))
    same, different = bench.send(600, token=1), bench.send(600, token=2)
    assert same.engine_id == first.engine_id
    assert different.engine_id != first.engine_id


async def test_what_was_just_sent_weighs_before_the_engine_says_so(bench: Bench) -> None:
    bench.add(FakeEngine("a"), FakeEngine("b"))
    long = bench.send(600, token=1)
    short = [bench.send(20, token=2), bench.send(20, token=3)]
    assert long.engine_id not in {job.engine_id for job in short}


async def test_a_view_made_before_a_request_came_does_not_hide_it(bench: Bench) -> None:
    engines = {name: FakeEngine(name) for name in ("a", "b")}
    bench.add(*engines.values())
    idle = LoadView(num_blocks=1000, num_free_blocks=1000, step_time_s=0.1)
    for engine in engines.values():
        engine.step(idle)
    first = bench.send(600, token=1)
    assert first.engine_id is not None
    bench.now_s += 0.01
    engines[first.engine_id].step(idle)  # of the step that ran meanwhile
    assert bench.send(600, token=2).engine_id != first.engine_id


async def test_samples_of_one_request_weigh_as_many_requests(bench: Bench) -> None:
    engines = [FakeEngine("a"), FakeEngine("b")]
    for engine in engines:
        engine.load = LoadView(step_time_s=0.1, prefill_tokens_per_s=10_000)
    bench.add(*engines)
    wide = bench.send(num_samples=4, token=1)
    narrow = [bench.send(token=token).engine_id for token in range(2, 5)]
    assert wide.engine_id not in narrow


async def test_a_waiting_request_does_not_move_between_equal_engines(bench: Bench) -> None:
    engines = [waiting("a"), waiting("b")]
    bench.add(*engines)
    bench.send()
    await asyncio.sleep(3.5 * TICK_S)
    assert sorted(engine.demands for engine in engines) == [[], [1]]


async def test_a_waiting_request_does_not_count_as_its_own_competitor(bench: Bench) -> None:
    engines = [waiting("a"), waiting("b")]
    for engine in engines:
        engine.load = LoadView(step_time_s=1.0)
    bench.add(*engines)
    bench.send()
    await asyncio.sleep(3.5 * TICK_S)
    assert sorted(engine.demands for engine in engines) == [[], [1]]


async def test_an_evicted_prefix_attracts_no_more(bench: Bench) -> None:
    engines = {name: FakeEngine(name) for name in ("a", "b")}
    bench.add(*engines.values())
    first = bench.send(600, token=1)
    assert first.engine_id is not None
    engine = engines[first.engine_id]
    engine.step(
        LoadView(num_running=1, step_time_s=0.1), CacheEvents(1, [], first.prompt.index_keys)
    )
    assert bench.send(600, token=1).engine_id != first.engine_id


async def test_a_prompt_made_for_other_weights_goes_to_no_engine(bench: Bench) -> None:
    engine = FakeEngine("a")
    bench.add(engine)
    job = bench.send(model="another")
    assert job.engine_id is None
    assert not engine.requests


async def test_who_waits_for_weights_that_nobody_has_any_more_is_told_so(bench: Bench) -> None:
    old, new = waiting("old"), FakeEngine(card=make_card("new", model="another"))
    bench.add(old)
    job = bench.send()
    bench.add(new)
    old.lose()
    await until(lambda: job.engine_id is None)
    await asyncio.sleep(2 * TICK_S)
    assert answer_of(job).error is None, "its engine may come back"
    bench.now_s += WEIGHTS_GONE_S
    await until(lambda: answer_of(job).error is not None)
    error = answer_of(job).error
    assert isinstance(error, WeightsReplacedError)
    assert (error.status, error.headers["retry-after"]) == (503, "1")
    assert bench.dispatcher.num_waiting == 0
