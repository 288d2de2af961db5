"""Percentiles and paired ratios, as every benchmark of the project reports them.

Knows numbers only: not what was measured, and nothing of files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

MIN_PAIRS = 5


class PairedRatio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Median and interquartile range of the ratios a/b over interleaved A/B pairs."""

    median: float
    q1: float
    q3: float
    num_pairs: int

    def __post_init__(self) -> None:
        if self.num_pairs < MIN_PAIRS:
            raise ValueError(
                f"a paired ratio needs at least {MIN_PAIRS} pairs, got {self.num_pairs}: "
                "run more interleaved A/B pairs"
            )
        if not all(math.isfinite(value) for value in (self.q1, self.median, self.q3)):
            raise ValueError("a paired ratio must be finite")
        if not self.q1 <= self.median <= self.q3:
            raise ValueError(f"quartiles out of order: {self.q1}, {self.median}, {self.q3}")


def percentile(values: Sequence[float], percent: float) -> float:
    """The `percent`-th percentile (0 to 100), linear between the two nearest ranks.

    Same definition as numpy's default, so that figures can be compared.
    """
    if not values:
        raise ValueError("no values: a percentile needs at least one")
    if not 0.0 <= percent <= 100.0:
        raise ValueError(f"percent must lie between 0 and 100, got {percent}")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100.0
    below = math.floor(rank)
    above = math.ceil(rank)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> PairedRatio:
    """How many times larger a is than b, from the pairs (a[i], b[i]) measured back to back.

    A ratio per pair, then the median: drift of the machine between pairs cancels out, which it
    would not in a ratio of two means.
    """
    if len(a) != len(b):
        raise ValueError(f"pairs must be complete, got {len(a)} and {len(b)} values")
    if len(a) < MIN_PAIRS:
        raise ValueError(
            f"a paired ratio needs at least {MIN_PAIRS} pairs, got {len(a)}: "
            "run more interleaved A/B pairs"
        )
    if any(not math.isfinite(value) or value < 0.0 for value in (*a, *b)) or 0.0 in b:
        raise ValueError("ratios need finite values, a >= 0 and b > 0")
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    return PairedRatio(
        median=percentile(ratios, 50.0),
        q1=percentile(ratios, 25.0),
        q3=percentile(ratios, 75.0),
        num_pairs=len(ratios),
    )
