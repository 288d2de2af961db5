"""What arrivals of a long prompt came to, for one configuration. Numbers only: must not know
engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from benchmarks.result import CaseResult
from benchmarks.statistics import percentile

MAX_STRETCH = 2.0
"""Promised: p99 of the gaps while the prompt is computed, over p99 undisturbed."""
MIN_PREFILL_SHARE = 0.8
"""Promised: speed of the prompt beside the streams, over its speed alone."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one arrival of the long prompt was like."""

    undisturbed_gaps_s: tuple[float, ...]
    """Of all streams, before it arrived."""
    gaps_s: tuple[float, ...]
    """Of all streams, from its arrival to its first token."""
    prefill_s: float
    """From its arrival to its first token, beside the streams."""
    alone_s: float
    """The same with an engine for itself."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between two tokens of a stream."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, gaps_s: Sequence[float]) -> Self:
        return cls(percentile(gaps_s, 50) * 1000, percentile(gaps_s, 99) * 1000, max(gaps_s) * 1000)


@dataclass(frozen=True, slots=True)
class StutterColumn:
    """Gaps of all arrivals together, medians of the prompt's speed."""

    undisturbed: Gaps
    beside_prefill: Gaps
    prefill_tokens_per_s: float
    alone_tokens_per_s: float

    @classmethod
    def of(cls, arrivals: Sequence[Arrival], *, prompt_len: int) -> Self:
        return cls(
            Gaps.of([gap_s for each in arrivals for gap_s in each.undisturbed_gaps_s]),
            Gaps.of([gap_s for each in arrivals for gap_s in each.gaps_s]),
            prompt_len / percentile([each.prefill_s for each in arrivals], 50),
            prompt_len / percentile([each.alone_s for each in arrivals], 50),
        )

    @property
    def stretch(self) -> float:
        return self.beside_prefill.p99_ms / self.undisturbed.p99_ms

    @property
    def prefill_share(self) -> float:
        return self.prefill_tokens_per_s / self.alone_tokens_per_s

    def figures(self) -> dict[str, tuple[float, str]]:
        """Value and unit of every figure."""
        figures = {
            f"{kind}_gap_{name}": (getattr(gaps, f"{name}_ms"), "ms")
            for kind, gaps in (("undisturbed", self.undisturbed), ("prefill", self.beside_prefill))
            for name in ("p50", "p99", "max")
        }
        return figures | {
            "stretch": (self.stretch, "x"),
            "prefill_speed": (self.prefill_tokens_per_s, "tok/s"),
            "alone_speed": (self.alone_tokens_per_s, "tok/s"),
            "prefill_share": (self.prefill_share, "share"),
        }


def summarize_stutter(
    name: str,
    column: StutterColumn,
    *,
    peer: str | None = None,
    beside: StutterColumn | None = None,
) -> list[CaseResult]:
    """All figures of one column, each next to that of the column ``beside``.

    The limit of ``stretch`` is not to be passed, that of ``prefill_share`` is to be reached.
    """
    limits = {"stretch": MAX_STRETCH, "prefill_share": MIN_PREFILL_SHARE}
    others = beside.figures() if beside is not None else {}
    return [
        CaseResult(
            case=f"{name}_{figure}",
            value=value,
            unit=unit,
            peer=peer,
            peer_value=others[figure][0] if others else None,
            limit=limits.get(figure),
        )
        for figure, (value, unit) in column.figures().items()
    ]


def table_row(name: str, column: StutterColumn) -> str:
    """One line for the terminal, under `TABLE_HEAD`."""
    calm, busy = column.undisturbed, column.beside_prefill
    return (
        f"{name:14} {calm.p50_ms:7.1f} {calm.p99_ms:7.1f} {calm.max_ms:7.1f} "
        f"{busy.p50_ms:8.1f} {busy.p99_ms:7.1f} {busy.max_ms:7.1f} {column.stretch:8.2f} "
        f"{column.prefill_tokens_per_s:8.0f} {column.alone_tokens_per_s:7.0f} "
        f"{column.prefill_share:6.0%}"
    )


TABLE_HEAD = (
    f"{'':14} {'undisturbed gaps, ms':>23} {'gaps beside prefill, ms':>24} {'p99':>8} "
    f"{'prefill, tok/s':>16} {'share':>6}\n"
    f"{'':14} {'p50':>7} {'p99':>7} {'max':>7} {'p50':>8} {'p99':>7} {'max':>7} {'stretch':>8} "
    f"{'beside':>8} {'alone':>7}"
)
