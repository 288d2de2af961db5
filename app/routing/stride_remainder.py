"""How much of a prompt is cached beyond the last key that an index of every 8th key can match.

The index knows a cached prefix in whole strides; the engine counts in blocks. What lies between is
0 to 7 blocks, and left out it would make every prediction too low. Its mean depends on where
prompts part from each other: anywhere in a conversation, which makes 3.5 blocks, but always at the
same place behind a system prompt. So it is learned from what engines report, for three kinds of
matches. With these means the sum of all predictions is unbiased, and each is off by less than a
stride. Knows numbers of blocks only.
"""

from enum import Enum

_WEIGHT = 0.02
"""Of the newest report: about the last hundred count."""


class _Match(Enum):
    """How the strides of a prompt match, and the share of the blocks behind it that is believed to
    be cached before anything was reported.
    """

    NONE = 0.0
    PART = 0.5
    """The prefix ends before the next stride does: each of its blocks is as likely the first."""
    ALL = 1.0
    """Most often the same prompt again."""


class StrideRemainder:
    """Moving means over the requests of one model."""

    def __init__(self, stride_blocks: int) -> None:
        self._stride = stride_blocks
        self._share = {match: match.value for match in _Match}

    def expected_blocks(self, num_matching: int, num_prompt_blocks: int) -> float:
        """Cached blocks behind ``num_matching`` strides of a prompt of so many full blocks."""
        match, num_possible = self._kind(num_matching, num_prompt_blocks)
        return self._share[match] * num_possible

    def learn(self, num_matching: int, num_prompt_blocks: int, num_cached_blocks: int) -> None:
        """An engine found so many blocks where ``num_matching`` strides were expected."""
        match, num_possible = self._kind(num_matching, num_prompt_blocks)
        num_beyond = num_cached_blocks - num_matching * self._stride
        # Strides that came or went meanwhile say nothing about what lies between two of them.
        if num_possible and 0 <= num_beyond <= num_possible:
            share = self._share[match]
            # A prompt that leaves less room says less of how much is cached in it.
            weight = _WEIGHT * num_possible / (self._stride - 1)
            self._share[match] = share + weight * (num_beyond / num_possible - share)

    def _kind(self, num_matching: int, num_prompt_blocks: int) -> tuple[_Match, int]:
        """And how many blocks may be cached at most without another stride."""
        num_possible = min(self._stride - 1, num_prompt_blocks - num_matching * self._stride)
        if num_matching == num_prompt_blocks // self._stride:
            return (_Match.ALL if num_matching else _Match.NONE), num_possible
        return (_Match.PART if num_matching else _Match.NONE), num_possible
