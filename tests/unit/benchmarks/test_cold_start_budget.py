"""docs/cold_start_budget.md keeps its promise with stages that exist and what they took."""

import re

import pytest

from benchmarks.cold_start_budget import (
    PATHS,
    PROMISE_S,
    RESULTS,
    START,
    Row,
    Source,
    WeightsPath,
    render,
    rows,
    total_s,
)
from benchmarks.machine import REPOSITORY
from benchmarks.result import read_result

PAGE = REPOSITORY / "docs" / "cold_start_budget.md"
CODE = ("engine", "cache_tiers", "deployments")
_STAGE = re.compile(r'(?:\.end|_end_stage|Stage)\(\s*"([^"]+)"')


@pytest.fixture(params=PATHS, ids=lambda path: path.name)
def budget(request: pytest.FixtureRequest) -> list[Row]:
    path: WeightsPath = request.param
    return rows(RESULTS, path)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == render(), "run `make docs`"


def test_the_promise_holds_wherever_the_weights_come_from(budget: list[Row]) -> None:
    assert total_s(budget) <= PROMISE_S


def test_every_part_takes_time_and_says_where_it_is_from(budget: list[Row]) -> None:
    assert all(row.time_s > 0.0 and row.where for row in budget)


def test_what_the_code_times_is_a_stage_that_it_ends(budget: list[Row]) -> None:
    files = [path for folder in CODE for path in (REPOSITORY / folder).rglob("*.py")]
    ended = {name for path in files for name in _STAGE.findall(path.read_text("utf-8"))}
    assert {row.stage for row in budget if row.stage} <= ended


def test_measured_parts_are_what_the_result_says(budget: list[Row]) -> None:
    results = read_result(RESULTS / "cold_start-start.json").results
    values = {result.case: result.value for result in results}
    measured = [row for row in budget if row.source is Source.MEASURED]
    assert len(measured) >= 9
    for row in measured:
        assert row.time_s == values[f"{START}_stage_{row.stage}"]


def test_weights_take_their_bytes_over_the_medium_times_the_share() -> None:
    path = WeightsPath("S3", "a_case", 25e9, "a test")
    # 140 GB over 25 GB/s are 5.6 s; at half of it, twice as long; never faster than the medium.
    assert path.time_s(1.0) == pytest.approx(5.6)
    assert path.time_s(0.5) == pytest.approx(11.2)
    assert path.time_s(1.1) == pytest.approx(5.6)
