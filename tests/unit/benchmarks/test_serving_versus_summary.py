"""From rounds of known figures to cases, ratios, validity and the table."""

from __future__ import annotations

import pytest

from benchmarks.result import CaseResult
from benchmarks.serving_contestants import OURS
from benchmarks.serving_rounds import Round
from benchmarks.serving_server import MeasurementError
from benchmarks.serving_versus_options import Floor
from benchmarks.serving_versus_summary import check_floors, speeds_of, table_of, versus_cases

PEER = "vllm-server"


def make_round(tokens_per_s: float, ttft_ms: float = 10.0) -> Round:
    run = [
        CaseResult(case="output_tokens_per_s", value=tokens_per_s, unit="tok/s"),
        CaseResult(case="ttft_p50", value=ttft_ms, unit="ms"),
        CaseResult(case="ttft_p90", value=ttft_ms, unit="ms"),
    ]
    return Round(start_s=1.0, runs={16: run}, log_tail=())


def make_rounds(num_rounds: int) -> dict[str, list[Round]]:
    drifts = [1.0 + number / 10.0 for number in range(num_rounds)]
    return {
        OURS: [make_round(300.0 * drift, 5.0) for drift in drifts],
        PEER: [make_round(100.0 * drift, 20.0) for drift in drifts],
    }


def test_each_peer_has_a_case_with_the_ratio_of_paired_rounds() -> None:
    cases = {case.case: case for case in versus_cases(make_rounds(5), {PEER: "vLLM 1.0"})}
    assert list(cases) == ["c16_output_tokens_per_s_vs_vllm-server", "c16_ttft_p50_vs_vllm-server"]
    speed = cases["c16_output_tokens_per_s_vs_vllm-server"]
    assert (speed.value, speed.peer, speed.peer_value) == (360.0, "vLLM 1.0", 120.0)
    assert speed.ratio is not None
    assert speed.ratio.median == pytest.approx(3.0)
    assert speed.ratio.q1 == pytest.approx(3.0)
    ttft = cases["c16_ttft_p50_vs_vllm-server"].ratio
    assert ttft is not None
    assert ttft.median == pytest.approx(0.25)


def test_too_few_rounds_give_figures_and_no_ratio() -> None:
    cases = versus_cases(make_rounds(1), {PEER: "vLLM"})
    assert [case.peer_value for case in cases] == [100.0, 20.0]
    assert all(case.ratio is None for case in cases)


def test_two_peers_stand_beside_ours_one_after_the_other() -> None:
    rounds = {**make_rounds(5), "ray-serve-llm": [make_round(50.0)] * 5}
    cases = versus_cases(rounds, {PEER: "vLLM", "ray-serve-llm": "Ray"})
    assert [case.case for case in cases if "tokens" in case.case] == [
        "c16_output_tokens_per_s_vs_vllm-server",
        "c16_output_tokens_per_s_vs_ray-serve-llm",
    ]


def test_a_peer_below_its_floor_voids_the_comparison() -> None:
    check_floors(make_rounds(5), [Floor(PEER, 16, 120.0)])
    with pytest.raises(MeasurementError, match=r"vllm-server gave 120 tok/s at concurrency 16"):
        check_floors(make_rounds(5), [Floor(PEER, 16, 121.0)])


def test_the_speed_of_every_round_is_kept() -> None:
    assert speeds_of(make_rounds(3)[PEER]) == {"c16": [100.0, 110.0, 120.0]}


def test_the_table_has_ours_each_peer_and_the_ratio() -> None:
    lines = [line.split() for line in table_of(make_rounds(5)).splitlines()]
    assert lines == [
        ["concurrency", "16", OURS, PEER, "ratio"],
        ["output_tokens_per_s", "360.00", "120.00", "3.00"],
        ["ttft_p50", "5.00", "20.00", "0.25"],
    ]
