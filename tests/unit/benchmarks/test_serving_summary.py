"""From records of known times to cases of known values."""

from __future__ import annotations

import pytest

from benchmarks.load import LoadOutcome
from benchmarks.result import CaseResult
from benchmarks.serving_summary import compare, summarize
from benchmarks.timeline import RequestRecord


def make_record(
    *content_s: float, end_s: float = 10.0, tokens: int = 3, error: str | None = None
) -> RequestRecord:
    return RequestRecord(0.0, 0.001, end_s, content_s, 200, tokens, error)


def values_of(cases: list[CaseResult]) -> dict[str, float]:
    return {case.case: case.value for case in cases}


def test_latencies_and_rates_of_known_records() -> None:
    records = (
        make_record(1.0, 2.0, 4.0, end_s=5.0),
        make_record(3.0, 4.0, 5.0, end_s=7.0),
        make_record(0.5, end_s=9.0, tokens=0, error="reset"),
    )
    values = values_of(summarize(LoadOutcome(records, 2, duration_s=8.0), client_cpu_s=0.25))
    assert values["ttft_p50"] == pytest.approx(2000.0)
    assert values["ttft_mean"] == pytest.approx(2000.0)
    assert values["ttft_p99.9"] == pytest.approx(2998.0)
    assert values["gap_mean"] == pytest.approx(1250.0)
    assert values["gap_p50"] == pytest.approx(1000.0)
    assert values["tpot_p50"] == pytest.approx(2000.0)
    assert values["e2e_p50"] == pytest.approx(6000.0)
    assert values["send_lag_mean"] == pytest.approx(1.0)
    assert values["output_tokens_per_s"] == pytest.approx(6 / 8.0)
    assert values["requests_per_s"] == pytest.approx(2 / 8.0)
    assert (values["succeeded"], values["errors"], values["unfinished"]) == (2, 1, 2)
    assert values["gaps"] == 4
    assert values["client_cpu_s"] == 0.25


def test_the_share_of_prompts_that_were_cached_counts_what_succeeded() -> None:
    records = (
        RequestRecord(0.0, 0.0, 2.0, (1.0,), 200, 1, None, prompt_tokens=300, cached_tokens=200),
        RequestRecord(0.0, 0.0, 2.0, (1.0,), 200, 1, None, prompt_tokens=100, cached_tokens=0),
        make_record(error="reset"),
    )
    values = values_of(summarize(LoadOutcome(records, 0, 10.0), 0.0))
    assert (values["prompt_tokens"], values["prefilled_tokens"]) == (400, 200)
    assert values["hit_rate"] == 0.5


def test_a_server_that_counts_no_prompt_has_no_hit_rate() -> None:
    values = values_of(summarize(LoadOutcome((make_record(1.0),), 0, 10.0), 0.0))
    assert "hit_rate" not in values


def test_one_token_answers_have_no_gap_and_no_tpot_case() -> None:
    values = values_of(summarize(LoadOutcome((make_record(1.0, tokens=1),), 0, 10.0), 0.0))
    assert "ttft_p50" in values
    assert not [case for case in values if case.startswith(("gap_", "tpot_"))]


def test_a_run_without_a_success_has_nothing_to_report() -> None:
    failed = LoadOutcome((make_record(error="HTTP 401: bad key"),), 0, 1.0)
    with pytest.raises(ValueError, match="HTTP 401: bad key"):
        summarize(failed, 0.0)
    with pytest.raises(ValueError, match="none ended in time"):
        summarize(LoadOutcome((), 3, 1.0), 0.0)


def make_run(ttft_ms: float, errors: float = 0.0) -> list[CaseResult]:
    return [
        CaseResult(case="ttft_p50", value=ttft_ms, unit="ms"),
        CaseResult(case="errors", value=errors, unit="requests"),
    ]


def test_a_comparison_takes_the_ratio_pair_by_pair() -> None:
    pairs = [(make_run(2.0 * drift), make_run(4.0 * drift)) for drift in (1.0, 2.0, 3.0, 4.0, 5.0)]
    ttft, errors = compare(pairs, "peer 1.0")
    assert (ttft.value, ttft.peer, ttft.peer_value) == (6.0, "peer 1.0", 12.0)
    assert ttft.ratio is not None
    assert (ttft.ratio.median, ttft.ratio.q1, ttft.ratio.q3) == (0.5, 0.5, 0.5)
    assert errors.ratio is None
    assert errors.peer_value == 0.0


def test_a_case_one_run_lacks_is_left_out() -> None:
    pairs = [(make_run(2.0), make_run(4.0)) for _ in range(5)]
    del pairs[3][1][0]
    assert [case.case for case in compare(pairs, "peer")] == ["errors"]
