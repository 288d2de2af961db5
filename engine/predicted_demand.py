"""Admits by the KV blocks that sequences are expected to hold at their peak, from the lengths that
answers have had.

The time ahead is cut into spans of steps, two to an octave, up to the longest answer there can be.
A sequence that still runs in a span holds what it has and one token more for every step to its end:
with the chance that its answer gets so long, given how long it is already. The sum has a mean and,
as lengths don't depend on each other, a variance; both together, with a learned margin, must fit
the pool in every span. Running sequences that share blocks are charged for a part each.

That future growth and completion of the running batch should decide is the idea of Gong et al.:
Past-Future Scheduler for LLM Serving under SLA Guarantees (2025), who draw samples of the lengths.
Must not know slots, budgets or clocks.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence as OrderedSequences

import numpy as np
from numpy.typing import NDArray

from engine.block_manager import BlockManager
from engine.messages import FinishReason
from engine.output_lengths import OutputLengths
from engine.safety_margin import SafetyMargin
from engine.sequence import Sequence
from engine.waiting_queue import BY_ORDER

_NUM_OCTAVES = 20


class PredictedDemand:
    """Owner of what was learned about answers."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        octaves = blocks.block_size * 2.0 ** np.arange(_NUM_OCTAVES)
        self._spans = np.concatenate(([0.0], np.outer(octaves, [1.0, 1.5]).ravel()))
        """Steps ahead at which each begins, the next one's begin being its end."""
        self.lengths = OutputLengths()
        self.margin = SafetyMargin()
        self._is_somebody_held_back = False

    def fits(
        self, running: OrderedSequences[Sequence], candidate: Sequence, num_new_blocks: int
    ) -> bool:
        """Whether ``candidate``, which takes ``num_new_blocks`` now, fits beside those of
        ``running`` that come before it: the others would give way.
        """
        for sequence in running:
            self._observe_growth(sequence)
        fits = self.peak_blocks(running, candidate, num_new_blocks) <= self._blocks.num_blocks
        self._is_somebody_held_back = not fits
        return fits

    def record_preemption(self, sequence: Sequence) -> None:
        """``sequence`` gives way because blocks ran out."""
        self.margin.record_lost(sequence.num_computed_tokens)

    def record_end(self, sequence: Sequence) -> None:
        """``sequence`` leaves for good, whatever ended it."""
        num_tokens = sequence.num_generated_tokens
        if num_tokens == 0:
            return
        self.margin.record_done(sequence.num_tokens, is_crowded=self._is_somebody_held_back)
        self._is_somebody_held_back = False  # until the next one is
        if not sequence.sampling.stop_token_ids:
            return
        next_trial = self._next_trial(sequence)
        cut = (FinishReason.LENGTH, FinishReason.ERROR, FinishReason.MOVED)
        if sequence.finish_reason in cut:
            self.lengths.observe_growth(next_trial, num_tokens)
        else:
            # An answer that its client or its deadline ends needs no more blocks either.
            self.lengths.observe_end(next_trial, num_tokens)

    def peak_blocks(
        self, running: OrderedSequences[Sequence], candidate: Sequence, num_new_blocks: int
    ) -> float:
        """The most blocks that are expected to be held, with the margin in force."""
        rows = [_numbers(sequence) for sequence in running]
        rows.append(_numbers(candidate))
        # [4, num_sequences, 1], against [num_spans]
        numbers = np.array(rows, dtype=np.float64).T[..., None]
        tokens_held = self._num_blocks(numbers[0])
        charged = tokens_held.copy()
        charged[-1] = num_new_blocks
        if len(running) > 0:
            num_used = self._blocks.num_blocks - self._blocks.num_free_blocks
            charged[:-1] *= num_used / tokens_held[:-1].sum()
        num_before = bisect_left(running, candidate.order, key=BY_ORDER)
        if num_before < len(running):
            counted = [*range(num_before), len(running)]
            numbers = numbers[:, counted]
            tokens_held, charged = tokens_held[counted], charged[counted]
        num_tokens, num_generated, least_tokens, num_left = numbers
        num_spans = max(1, int(np.searchsorted(self._spans, num_left.max())))
        begin, end = self._spans[:num_spans], self._spans[1 : num_spans + 1]
        growth = np.minimum(num_left, end)
        middle = np.minimum(num_left, (begin + end) / 2)
        survival = self._survival(num_generated, least_tokens, middle)
        survival[:, 1:][num_left <= begin[1:]] = 0.0  # in the first one all are here
        demand = charged + self._num_blocks(num_tokens + growth) - tokens_held
        expected = survival * demand
        variance = (expected * (demand - expected)).sum(axis=0)
        peak = expected.sum(axis=0) + self.margin.num_deviations * np.sqrt(variance)
        return float(peak.max())

    def _survival(
        self,
        num_generated: NDArray[np.float64],
        least_tokens: NDArray[np.float64],
        steps: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Share of answers that go on for ``steps``: [num_sequences, num_spans]."""
        log_survival = self.lengths.log_survival
        now = log_survival(np.maximum(num_generated, least_tokens))
        return np.exp(log_survival(np.maximum(num_generated + steps, least_tokens)) - now)

    def _num_blocks(self, num_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """As ``KvGeometry.num_blocks_of``, for many at once."""
        block_size = self._blocks.block_size
        whole = np.ceil(num_tokens / block_size)
        held = np.zeros_like(num_tokens)
        for window in self._blocks.windows:
            if window is None:
                held += whole
            else:
                held += np.minimum(whole, math.ceil((window - 1 + block_size) / block_size))
        return held

    def _observe_growth(self, sequence: Sequence) -> None:
        num_tokens = len(sequence.generated_ids)
        if sequence.next_length_trial is not None and num_tokens < sequence.next_length_trial:
            return
        if sequence.sampling.stop_token_ids:
            next_trial = self._next_trial(sequence)
            sequence.next_length_trial = self.lengths.observe_growth(next_trial, num_tokens)

    def _next_trial(self, sequence: Sequence) -> int:
        if sequence.next_length_trial is None:
            num_tokens = max(sequence.request.num_generated_tokens, sequence.sampling.min_tokens)
            sequence.next_length_trial = self.lengths.first_trial(num_tokens)
        return sequence.next_length_trial


def _numbers(sequence: Sequence) -> tuple[int, int, int, int]:
    """Tokens, those generated, those generated at least, those that may follow at most."""
    num_generated = len(sequence.generated_ids)
    num_tokens = sequence.num_prompt_tokens + num_generated
    sampling = sequence.sampling
    # Without a stop token nothing but its limit, or its client, ends it.
    least_tokens = sampling.min_tokens if sampling.stop_token_ids else sequence.max_len
    return num_tokens, num_generated, least_tokens, sequence.max_len - num_tokens
