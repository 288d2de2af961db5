"""One model's history, second by second: hours of it in a ring of fixed size.

A second of which nothing is known holds NaN and counts in no sum. Must not know what the figures
are used for.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.observation import Demand

_COLUMNS = (
    "num_arrived",
    "num_refused",
    "num_prompt_tokens",
    "num_uncached_tokens",
    "num_generated_tokens",
    "num_begun",
    "num_ended",
    "num_ttft_late",
    "num_tpot_late",
    "num_waiting",
    "kv_use",
    "num_serving",
    "num_parked",
    "num_starting",
)
_NUM_RATES = 9
"""The first columns are per second, the others as they were at that time."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is so at one time, whatever comes in."""

    kv_use: float | None
    """Share of the blocks of replicas that serve; None while unknown."""
    num_serving: int
    num_parked: int
    num_starting: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the known seconds of a stretch of time."""

    num_known_s: int
    num_arrived: float = 0.0
    num_refused: float = 0.0
    num_prompt_tokens: float = 0.0
    num_uncached_tokens: float = 0.0
    num_generated_tokens: float = 0.0
    num_begun: float = 0.0
    num_ended: float = 0.0
    num_ttft_late: float = 0.0
    num_tpot_late: float = 0.0


_LARGEST = 1e30
"""A claim beyond it is nonsense, and more than a row's numbers hold."""


class Window:
    """Owner of the ring."""

    def __init__(self, history_s: float) -> None:
        self.known_s = 0.0
        """Seconds of which demand was known, since the start."""
        self._num_rows, self._rows = _empty_ring(history_s)
        self._end: int | None = None
        """The newest second."""
        self._weight_s = 0.0
        """How much of it is in its row."""

    @property
    def num_bytes(self) -> int:
        """Of the ring."""
        return self._rows.nbytes

    def resize(self, history_s: float) -> None:
        """Keep so much from now on; the newest stay."""
        old, num_old = self._rows, self._num_rows
        self._num_rows, self._rows = _empty_ring(history_s)
        if self._end is not None:
            seconds = self._end - np.arange(min(num_old, self._num_rows))
            self._rows[seconds % self._num_rows] = old[seconds % num_old]

    def record(self, now_s: float, demand: Demand | None, standing: Standing) -> None:
        """What is known at ``now_s``, which never goes back; ``demand`` None: of demand nothing."""
        second = math.floor(now_s)
        previous = self._open(second)
        row = np.full(len(_COLUMNS), np.nan, dtype=np.float32)
        kv_use = math.nan if standing.kv_use is None else standing.kv_use
        row[_NUM_RATES + 1 :] = (
            kv_use,
            standing.num_serving,
            standing.num_parked,
            standing.num_starting,
        )
        covered_s = 1.0
        if demand is not None:
            covered_s = demand.period_s
            self.known_s += min(covered_s, self._num_rows)
            for column, name in enumerate(_COLUMNS[:_NUM_RATES]):
                row[column] = min(getattr(demand, name) / covered_s, _LARGEST)
            row[_NUM_RATES] = min(demand.num_waiting, _LARGEST)
        num_covered = max(1, min(second - previous, round(covered_s), self._num_rows))
        for back in range(1, num_covered):
            self._rows[(second - back) % self._num_rows] = row
        self._merge(second, row, min(1.0, covered_s))

    def totals(self, duration_s: float) -> Totals:
        """Of the last ``duration_s``."""
        if self._end is None:
            return Totals(0)
        num_rows = max(1, min(self._num_rows, round(duration_s)))
        start = (self._end + 1 - num_rows) % self._num_rows
        parts = [self._rows[start : start + num_rows, :_NUM_RATES]]
        if start + num_rows > self._num_rows:
            parts.append(self._rows[: start + num_rows - self._num_rows, :_NUM_RATES])
        rates = parts[0] if len(parts) == 1 else np.concatenate(parts)
        known = ~np.isnan(rates[:, 0])
        sums = rates[known].sum(axis=0, dtype=np.float64).tolist()
        return Totals(int(known.sum()), *sums)

    def latest(self, name: str) -> float | None:
        """The newest value of a column; None while unknown."""
        if self._end is None:
            return None
        value = float(self._rows[self._end % self._num_rows, _COLUMNS.index(name)])
        return None if math.isnan(value) else value

    def _open(self, second: int) -> int:
        """Make room up to ``second``; the second that was the newest."""
        previous = second - 1 if self._end is None else self._end
        if second > previous:
            num_new = min(second - previous, self._num_rows)
            new = np.arange(second - num_new + 1, second + 1) % self._num_rows
            self._rows[new] = np.nan
            self._weight_s = 0.0
        self._end = max(second, previous)
        return previous

    def _merge(self, second: int, row: npt.NDArray[np.float32], weight_s: float) -> None:
        """Several observations of one second become their mean."""
        held = self._rows[second % self._num_rows]
        share = weight_s / (self._weight_s + weight_s)
        both = held + share * (row - held)
        held[:] = np.where(np.isnan(held), row, np.where(np.isnan(row), held, both))
        self._weight_s += weight_s


def _empty_ring(history_s: float) -> tuple[int, npt.NDArray[np.float32]]:
    num_rows = max(60, math.ceil(history_s))
    return num_rows, np.full((num_rows, len(_COLUMNS)), np.nan, dtype=np.float32)
