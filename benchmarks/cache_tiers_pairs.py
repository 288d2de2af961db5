"""Interleaved pairs of what is measured and its limit, and the figure that they give."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.result import CaseResult, paired_ratio

GB = 1e9


@dataclass(slots=True)
class Pairs:
    """``ours[i]`` and ``theirs[i]`` were measured back to back."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def add(self, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
        """Measure a pair; who goes first changes."""
        if len(self.ours) % 2:
            their_value, our_value = theirs(), ours()
        else:
            our_value, their_value = ours(), theirs()
        self.ours.append(our_value)
        self.theirs.append(their_value)

    def rates(self, num_bytes: int, case: str, peer: str) -> CaseResult:
        """Of seconds for so many bytes the GB/s; the ratio is ours over theirs."""
        rates = Pairs(
            [num_bytes / seconds / GB for seconds in self.ours],
            [num_bytes / seconds / GB for seconds in self.theirs],
        )
        return rates.result(case, "GB/s", peer)

    def result(self, case: str, unit: str, peer: str) -> CaseResult:
        """The ratio is ours over theirs."""
        return _report(
            CaseResult(
                case=case,
                value=statistics.median(self.ours),
                unit=unit,
                peer=peer,
                peer_value=statistics.median(self.theirs),
                ratio=paired_ratio(self.ours, self.theirs),
            )
        )


def single(case: str, values: Sequence[float], unit: str, limit: float | None = None) -> CaseResult:
    """The median of several values."""
    return _report(CaseResult(case=case, value=statistics.median(values), unit=unit, limit=limit))


def _report(result: CaseResult) -> CaseResult:
    line = f"{result.case:40} {result.value:12.4g} {result.unit}"
    if result.ratio is not None:
        ratio = result.ratio
        line += f"  {ratio.median:.3g} ({ratio.q1:.3g}-{ratio.q3:.3g}) x {result.peer}"
    if result.limit is not None:
        line += f"  {result.of_limit:.3g} of {result.limit:.4g}"
    print(line, flush=True)
    return result
