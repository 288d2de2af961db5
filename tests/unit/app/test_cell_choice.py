"""Large fleets: a request stays in one of two cells."""

from collections.abc import AsyncIterator

import pytest

from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.routing.cells import MAX_CELL_REPLICAS, assign_cells
from engine.messages import LoadView
from tests.unit.app.dispatch_bench import Bench
from tests.unit.app.fakes import FakeEngine

NUM_ENGINES = 3 * MAX_CELL_REPLICAS


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(dispatcher=None)  # type: ignore[arg-type]
    bench.dispatcher = Dispatcher("m", GatewayConfig(), clock=lambda: bench.now_s)
    yield bench
    bench.dispatcher.check_integrity()
    await bench.dispatcher.close()


def add_engines(bench: Bench, num_engines: int = NUM_ENGINES) -> dict[str, FakeEngine]:
    engines = {f"e{number}": FakeEngine(f"e{number}") for number in range(num_engines)}
    bench.add(*engines.values())
    return engines


def send_all(bench: Bench, num_jobs: int, affinity: int) -> set[str]:
    chosen = set()
    for number in range(num_jobs):
        job = bench.job(20, token=number)
        job.affinity = affinity
        bench.dispatcher.enqueue(job)
        assert job.engine_id is not None
        chosen.add(job.engine_id)
    return chosen


async def test_who_belongs_together_stays_in_one_cell(bench: Bench) -> None:
    cells = assign_cells(add_engines(bench))
    of_session = {cells.cell_of[engine_id] for engine_id in send_all(bench, 40, affinity=7)}
    assert len(of_session) == 1
    of_all = {
        cells.cell_of[engine_id]
        for affinity in range(20)
        for engine_id in send_all(bench, 1, affinity)
    }
    assert of_all == set(range(len(cells)))


async def test_short_prompts_that_belong_to_nobody_spread_over_all_cells(bench: Bench) -> None:
    cells = assign_cells(add_engines(bench, 6 * MAX_CELL_REPLICAS))
    chosen = set()
    for number in range(60):
        job = bench.job()
        job.request_id = f"chatcmpl-{number}"
        bench.dispatcher.enqueue(job)
        assert job.engine_id is not None
        chosen.add(cells.cell_of[job.engine_id])
    assert chosen == set(range(len(cells)))


async def test_a_busy_cell_is_left_for_the_other_one_of_the_pair(bench: Bench) -> None:
    engines = add_engines(bench)
    cells = assign_cells(engines)
    (chosen,) = send_all(bench, 1, affinity=7)
    busy = cells.cell_of[chosen]
    for engine_id in cells.members[busy]:
        engines[engine_id].step(LoadView(num_running=50))
    (other,) = send_all(bench, 1, affinity=7)
    assert cells.cell_of[other] != busy


async def test_a_cell_without_engines_that_accept_is_no_dead_end(bench: Bench) -> None:
    engines = add_engines(bench)
    for engine_id in list(engines)[1:]:
        engines[engine_id].is_accepting = False
    assert {send_all(bench, 1, affinity).pop() for affinity in range(10)} == {"e0"}


async def test_a_small_fleet_is_one_cell(bench: Bench) -> None:
    add_engines(bench, 16)
    assert len(send_all(bench, 64, affinity=7)) == 16
