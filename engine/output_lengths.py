"""How long answers get, learned from those so far: for each range of lengths, how likely an answer
that got there ends there.

Ranges are logarithmic, four to an octave. Every answer gives one trial in each range that it
reached, long before it has ended, so that answers that still run count as much as those that ended
early (the product-limit estimate of Kaplan and Meier: Nonparametric Estimation from Incomplete
Observations, 1958). A range remembers about its last trials, so that a change of the traffic shows
after as many. Must not know sequences, blocks or time.
"""

import numpy as np
from numpy.typing import NDArray

_RANGES_PER_OCTAVE = 4
_MOST_TOKENS = 1 << 24
_NUM_REMEMBERED_TRIALS = 256
_NUM_PRIOR_TRIALS = 2
_PRIOR_ENDS = 0.05
"""Share that ends in a range of which nothing is known: of answers that may have 1,000 tokens every
sixth gets there, and half of those with 100 get to 800."""
_MOST_ENDS = 0.999
"""However surely answers have ended in a range, the next may go on."""


def _range_starts() -> list[int]:
    starts = list(range(2 * _RANGES_PER_OCTAVE))
    while starts[-1] < _MOST_TOKENS:
        width = 1 << (starts[-1].bit_length() - _RANGES_PER_OCTAVE.bit_length())
        starts.append(starts[-1] + width)
    return starts


_STARTS = _range_starts()
"""Exact up to 8 tokens; then 8, 10, 12, 14, 16, 20, …"""
_START_POINTS = np.array(_STARTS, dtype=np.float64)


def range_index(num_tokens: int) -> int:
    """Of the range that ``num_tokens`` lies in."""
    shift = num_tokens.bit_length() - _RANGES_PER_OCTAVE.bit_length()
    if shift <= 0:
        return num_tokens
    return min((shift << 2) + (num_tokens >> shift), len(_STARTS) - 1)


class OutputLengths:
    """Owner of what was learned; some hundred numbers."""

    def __init__(self) -> None:
        self._end_shares = [_PRIOR_ENDS] * len(_STARTS)
        self._num_trials = [_NUM_PRIOR_TRIALS] * len(_STARTS)
        self._log_survival: NDArray[np.float64] | None = None
        """At the start of each range: log of the share of answers that get there."""

    def first_trial(self, num_tokens: int) -> int:
        """For an answer that could not end before ``num_tokens``, or of which that is not known:
        the length at which ``observe_growth`` first learns from it.
        """
        index = range_index(num_tokens)
        # Of a range that it is only partly seen in nothing is learned.
        return _STARTS[min(index + 1 + (_STARTS[index] < num_tokens), len(_STARTS) - 1)]

    def observe_growth(self, next_trial: int, num_tokens: int) -> int:
        """An answer has ``num_tokens`` and goes on, or was cut off. ``next_trial`` is what the last
        call for it returned; returns the length at which there is something to learn again.
        """
        first, end = range_index(next_trial) - 1, range_index(num_tokens)
        for index in range(first, end):
            self._add_trial(index, is_end=False)
        return next_trial if end <= first else _STARTS[min(end + 1, len(_STARTS) - 1)]

    def observe_end(self, next_trial: int, num_tokens: int) -> None:
        """An answer ended with ``num_tokens`` by itself."""
        self.observe_growth(next_trial, num_tokens)
        end = range_index(num_tokens)
        if end >= range_index(next_trial) - 1:
            self._add_trial(end, is_end=True)

    def log_survival(self, num_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log of the share of answers that get to ``num_tokens``, an array of any shape.

        Of the answers that got to ``a`` the share that gets to ``b`` is the difference of the two.
        """
        return np.interp(num_tokens, _START_POINTS, self._at_starts())

    def _at_starts(self) -> NDArray[np.float64]:
        if self._log_survival is None:
            end_shares = np.minimum(self._end_shares[:-1], _MOST_ENDS)
            self._log_survival = np.concatenate(([0.0], np.cumsum(np.log1p(-end_shares))))
        return self._log_survival

    def _add_trial(self, index: int, *, is_end: bool) -> None:
        num_trials = min(self._num_trials[index] + 1, _NUM_REMEMBERED_TRIALS)
        self._num_trials[index] = num_trials
        self._end_shares[index] += (is_end - self._end_shares[index]) / num_trials
        self._log_survival = None
