"""What one run of the batching benchmark came to. Numbers only: must not know engines or policies.

A *slot* is one row of a step: a position of one sequence that the model computes. It is useful if
it is a prompt token computed for the first time or leads to a token of an answer that was asked
for; padding, rows of ended answers and what is computed again are not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from benchmarks.batching_workload import Ask
from benchmarks.result import CaseResult
from benchmarks.statistics import percentile


@dataclass(slots=True)
class Progress:
    """How far an ask has come that was handed to the engine."""

    ask: Ask
    num_tokens: int = 0
    """Of the answer that was asked for."""
    first_token_s: float | None = None
    """Since the start of the run."""

    @property
    def is_done(self) -> bool:
        return self.num_tokens == self.ask.output_len

    @property
    def num_useful_slots(self) -> int:
        """The last slot of the prompt leads to the first token."""
        return self.ask.prompt_len + self.num_tokens - 1 if self.num_tokens else 0

    def take(self, num_tokens: int, now_s: float) -> None:
        """Count what a step brought; what goes beyond the answer is dropped."""
        if num_tokens > 0 and self.first_token_s is None:
            self.first_token_s = now_s
        self.num_tokens = min(self.ask.output_len, self.num_tokens + num_tokens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run, or of several added up."""

    elapsed_s: float
    num_tokens: int
    """Of answers, as they were asked for."""
    num_useful_slots: int
    num_slots: int
    ttfts_s: tuple[float, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, progress: Sequence[Progress], *, elapsed_s: float, num_slots: int) -> Self:
        return cls(
            elapsed_s=elapsed_s,
            num_tokens=sum(each.num_tokens for each in progress),
            num_useful_slots=sum(each.num_useful_slots for each in progress),
            num_slots=num_slots,
            ttfts_s=tuple(
                each.first_token_s - each.ask.arrival_s
                for each in progress
                if each.first_token_s is not None
            ),
        )

    @classmethod
    def total(cls, outcomes: Sequence[Self]) -> Self:
        return cls(
            elapsed_s=math.fsum(each.elapsed_s for each in outcomes),
            num_tokens=sum(each.num_tokens for each in outcomes),
            num_useful_slots=sum(each.num_useful_slots for each in outcomes),
            num_slots=sum(each.num_slots for each in outcomes),
            ttfts_s=tuple(ttft_s for each in outcomes for ttft_s in each.ttfts_s),
        )

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.elapsed_s

    @property
    def useful_share(self) -> float:
        return self.num_useful_slots / self.num_slots


def summarize_column(
    name: str, outcome: Outcome, *, peer: str | None = None, reference: Outcome | None = None
) -> list[CaseResult]:
    """Speed and useful slots of one column, beside those of ``reference`` if there is one."""
    figures = [("tokens_per_s", "tok/s"), ("useful_share", "share")]
    return [
        CaseResult(
            case=f"{name}_{figure}",
            value=getattr(outcome, figure),
            unit=unit,
            peer=peer,
            peer_value=None if reference is None else getattr(reference, figure),
        )
        for figure, unit in figures
    ]


def summarize_ttft(name: str, outcome: Outcome) -> list[CaseResult]:
    """Time to first token under open-loop arrivals."""
    return [
        CaseResult(
            case=f"{name}_ttft_p{percent}",
            value=percentile(outcome.ttfts_s, percent) * 1000,
            unit="ms",
        )
        for percent in (50, 99)
    ]
