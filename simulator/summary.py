"""The figures of simulations side by side, as rows of text or JSON. Must not know what was
simulated.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from simulator.outcome import Distribution, Outcome


class Run(NamedTuple):
    """One simulation of a comparison."""

    label: str
    outcome: Outcome
    cost: float
    """US dollars for the time simulated; 0 where no price is known."""


class Summary(msgspec.Struct, frozen=True):
    """Of one run; times are in seconds."""

    label: str
    num_requests: int
    num_refused: int
    ttft_s: Distribution
    tpot_s: Distribution | None
    """None where nothing in the model makes tokens, or all answers are of one."""
    hit_rate: float
    """Share of the prompt tokens that were not computed."""
    request_imbalance: float
    """Requests of the busiest replica over the mean of all."""
    prefill_imbalance: float
    answer_tokens_per_s: float
    num_preemptions: int
    duration_s: float
    cost: float

    @property
    def cost_per_million_tokens(self) -> float:
        """Of answers."""
        num_tokens = self.answer_tokens_per_s * self.duration_s
        return 1e6 * self.cost / num_tokens if num_tokens else 0.0


def summarize(run: Run) -> Summary:
    outcome = run.outcome
    return Summary(
        label=run.label,
        num_requests=len(outcome.requests),
        num_refused=outcome.num_refused,
        ttft_s=outcome.ttft_s,
        tpot_s=outcome.tpot_s,
        hit_rate=outcome.hit_rate,
        request_imbalance=outcome.request_imbalance,
        prefill_imbalance=outcome.prefill_imbalance,
        answer_tokens_per_s=outcome.answer_tokens_per_s,
        num_preemptions=outcome.num_preemptions,
        duration_s=outcome.duration_s,
        cost=run.cost,
    )


def table_cells(summaries: Sequence[Summary]) -> list[dict[str, str]]:
    """A row per run, by the heading of the column."""
    return [_cells(summary) for summary in summaries]


def _cells(summary: Summary) -> dict[str, str]:
    ttft, tpot = summary.ttft_s, summary.tpot_s
    cells = {
        "policy": summary.label,
        "TTFT mean": _seconds(ttft.mean),
        "p50": _seconds(ttft.p50),
        "p95": _seconds(ttft.p95),
        "p99": _seconds(ttft.p99),
        "TPOT mean": "–" if tpot is None else _milliseconds(tpot.mean),
        "TPOT p99": "–" if tpot is None else _milliseconds(tpot.p99),
        "hits": f"{summary.hit_rate:.1%}",
        "busiest/mean": f"{summary.request_imbalance:.2f}",
        "by prefill": f"{summary.prefill_imbalance:.2f}",
        "tokens/s": f"{summary.answer_tokens_per_s:,.0f}",
        "preempted": str(summary.num_preemptions),
        "refused": str(summary.num_refused),
    }
    if summary.cost:
        cells["cost"] = f"${summary.cost:,.2f}"
        cells["per 1M tokens"] = f"${summary.cost_per_million_tokens:,.2f}"
    return cells


def render_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Aligned: the first column to the left, figures to the right."""
    headings = list(rows[0])
    lines = [headings, *([row[heading] for heading in headings] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _seconds(time_s: float) -> str:
    return f"{time_s:.2f} s" if time_s >= 1 else f"{1000 * time_s:.0f} ms"


def _milliseconds(time_s: float) -> str:
    return f"{1000 * time_s:.1f} ms"
