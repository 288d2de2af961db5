"""Runs stand side by side in a table."""

import pytest

from simulator.outcome import Outcome, RequestOutcome
from simulator.summary import Run, render_table, summarize, table_cells


def outcome(*ttfts_s: float, num_answer: int = 11) -> Outcome:
    """One request each second, whose answer takes one more."""
    requests = [
        RequestOutcome(f"r{n}", f"e{n % 2}", n, n + ttft_s, n + ttft_s + 1, 100, num_answer, 25)
        for n, ttft_s in enumerate(ttfts_s)
    ]
    return Outcome(requests, num_refused=3, replica_s=7200.0, num_preemptions=2)


def test_figures_are_those_of_the_outcome() -> None:
    summary = summarize(Run("ours", outcome(0.5, 0.5, 2.0), cost=6.0))
    assert summary.ttft_s.mean == 1.0
    assert summary.tpot_s is not None
    assert summary.tpot_s.p99 == pytest.approx(0.1)
    assert (summary.hit_rate, summary.num_refused, summary.num_preemptions) == (0.25, 3, 2)
    # 33 tokens in 5 seconds
    assert summary.answer_tokens_per_s == pytest.approx(6.6)
    assert summary.cost_per_million_tokens == pytest.approx(1e6 * 6 / 33)


def test_a_table_is_aligned_and_has_units() -> None:
    rows = table_cells(
        [
            summarize(Run("ours", outcome(0.5, 2.0), cost=0.0)),
            summarize(Run("round_robin", outcome(0.25, 20.0), cost=0.0)),
        ]
    )
    heading, ours, theirs = render_table(rows).splitlines()
    assert heading.startswith("policy       TTFT mean")
    assert ours.startswith("ours            1.25 s  500 ms")
    assert theirs.startswith("round_robin    10.12 s  250 ms")
    assert "cost" not in heading


def test_what_costs_says_how_much() -> None:
    [row] = table_cells([summarize(Run("ours", outcome(1.0), cost=0.011))])
    assert row["cost"] == "$0.01"
    assert row["per 1M tokens"] == "$1,000.00"


def test_answers_of_one_token_have_no_time_per_token() -> None:
    [row] = table_cells([summarize(Run("ours", outcome(1.0, num_answer=1), cost=0.0))])
    assert row["TPOT mean"] == "–"
