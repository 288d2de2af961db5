"""From logits to tokens: who is adjusted, who is greedy, who is drawn, and what is reported.

Every token is a pure function of its row's logits, its sequence's parameters and past, and
(seed, position), so that preemption, migration and the rest of the batch don't change it. Must not
know sequences, only slots.
"""

from collections.abc import Iterator
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.messages import TokenLogprobs
from engine.sampling.adjustments import BatchAdjustments, SlotAdjustments
from engine.sampling.chunking import rows_per_chunk
from engine.sampling.drawing import DrawParams, draw_filtered, draw_unfiltered
from engine.sampling.greedy import pick_greedily
from engine.sampling.logprobs import token_logprobs
from engine.sampling.randomness import uniform
from engine.sampling.rescoring import Rescore, for_samples
from engine.step import Admission, SampledToken

__all__ = ["Rescore", "Sampler"]

IntArray = NDArray[np.int64]

_GREEDY_CHUNK_FACTOR = 4
"""Greedy rows need few copies, and every chunk of them costs a rescoring."""


class _Way(Enum):
    GREEDY = "greedy"
    FILTERED = "filtered"
    UNFILTERED = "unfiltered"


class Sampler:
    """Owner of the sampling state of every slot: parameters, and tokens that penalties count."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._temperature = np.zeros(num_slots, dtype=np.float32)
        self._top_k = np.full(num_slots, vocab_size, dtype=np.int64)
        self._top_p = np.ones(num_slots, dtype=np.float64)
        self._min_p = np.zeros(num_slots, dtype=np.float64)
        self._seed = np.zeros(num_slots, dtype=np.uint64)
        self._num_logprobs: list[int | None] = [None] * num_slots
        self._adjustments: dict[int, SlotAdjustments] = {}

    def admit(self, admission: Admission) -> None:
        """Remember how to sample for the sequence that enters the slot."""
        slot, sampling = admission.slot, admission.sampling
        largest = float(np.finfo(np.float32).max)
        self._temperature[slot] = min(sampling.temperature, largest)
        has_top_k = 0 < sampling.top_k < self._vocab_size
        self._top_k[slot] = sampling.top_k if has_top_k else self._vocab_size
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = min(sampling.min_p, 1.0)
        self._seed[slot] = sampling.seed
        self._num_logprobs[slot] = sampling.num_logprobs
        self.release(slot)
        if SlotAdjustments.are_needed(sampling):
            self._adjustments[slot] = SlotAdjustments(admission, self._vocab_size)

    def release(self, slot: int) -> None:
        """Forget the sequence's tokens; slots that hold none are skipped."""
        self._adjustments.pop(slot, None)

    def sample(
        self,
        logits: Tensor,
        rows: IntArray,
        slots: IntArray,
        positions: IntArray,
        rescore: Rescore | None = None,
    ) -> list[SampledToken]:
        """One token per sample, from row ``rows[i]`` of ``logits`` [num_rows, vocab_size], which
        stay as they are.

        ``positions`` are those that the new tokens will have. ``rescore`` gives exact logits where
        ``logits`` are coarse. A row with NaN or infinite logits yields no token but -1.
        """
        assert logits.shape[-1] == self._vocab_size, "the model's vocabulary is another one"
        if not len(slots):
            return []
        sampled = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
        for way, members in self._groups(slots, rows_per_chunk(logits)):
            sampled[torch.from_numpy(members).to(logits.device)] = self._sample_group(
                way, logits, rows[members], slots[members], positions[members], rescore
            )
        token_ids: IntArray = sampled.cpu().numpy()
        for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
            if slot in self._adjustments and token_id >= 0:
                self._adjustments[slot].remember(token_id)
        logprobs = self._logprobs(logits, rows, slots, token_ids, rescore)
        return [
            SampledToken(slot, token_id, logprobs.get(sample))
            for sample, (slot, token_id) in enumerate(
                zip(slots.tolist(), token_ids.tolist(), strict=True)
            )
        ]

    def _groups(self, slots: IntArray, chunk_len: int) -> Iterator[tuple[_Way, IntArray]]:
        """Samples that go the same way, not too many at a time."""
        is_greedy = self._temperature[slots] == 0
        is_filtered = (
            (self._top_k[slots] < self._vocab_size)
            | (self._top_p[slots] < 1)
            | (self._min_p[slots] > 0)
        )
        for way, is_member, num_rows in (
            (_Way.GREEDY, is_greedy, chunk_len * _GREEDY_CHUNK_FACTOR),
            (_Way.FILTERED, ~is_greedy & is_filtered, chunk_len),
            (_Way.UNFILTERED, ~is_greedy & ~is_filtered, chunk_len),
        ):
            members = np.flatnonzero(is_member)
            for start in range(0, len(members), num_rows):
                yield way, members[start : start + num_rows]

    def _sample_group(
        self,
        way: _Way,
        logits: Tensor,
        rows: IntArray,
        slots: IntArray,
        positions: IntArray,
        rescore: Rescore | None,
    ) -> Tensor:
        """[num_samples] Token ids on the device, -1 for rows that are not finite."""
        own_logits = _rows_of(logits, rows)
        adjustments = BatchAdjustments.collect(
            [self._adjustments.get(slot) for slot in slots.tolist()],
            positions,
            self._vocab_size,
            logits.device,
        )
        is_coarse = logits.dtype is not torch.float32
        if way is _Way.GREEDY:
            exact = for_samples(rescore, rows, len(logits)) if rescore and is_coarse else None
            return pick_greedily(own_logits, adjustments, exact)
        scores = own_logits.float()
        is_finite = scores.amax(dim=-1).isfinite()
        if adjustments is not None:
            scores = adjustments.applied_to(scores, is_in_place=is_coarse)
        draw = draw_filtered if way is _Way.FILTERED else draw_unfiltered
        tokens = draw(scores, self._draw_params(slots, positions, logits.device))
        return tokens.masked_fill(~is_finite, -1)

    def _draw_params(
        self, slots: IntArray, positions: IntArray, device: torch.device
    ) -> DrawParams:
        columns = [
            self._temperature[slots].astype(np.float64),
            self._top_k[slots].astype(np.float64),
            self._top_p[slots],
            self._min_p[slots],
            uniform(self._seed[slots], positions),
        ]
        return DrawParams.on_device(np.stack(columns), device)

    def _logprobs(
        self,
        logits: Tensor,
        rows: IntArray,
        slots: IntArray,
        token_ids: IntArray,
        rescore: Rescore | None,
    ) -> dict[int, TokenLogprobs]:
        """By sample, of those that ask for it."""
        wanted = [self._num_logprobs[slot] for slot in slots.tolist()]
        members = np.array(
            [
                sample
                for sample, num_top in enumerate(wanted)
                if num_top is not None and token_ids[sample] >= 0
            ],
            dtype=np.int64,
        )
        if not len(members):
            return {}
        most = max(num_top for num_top in wanted if num_top is not None)
        reported = token_logprobs(
            _rows_of(logits, rows[members]),
            token_ids[members],
            most,
            None if rescore is None else for_samples(rescore, rows[members], len(logits)),
        )
        return {
            sample: _first(one, wanted[sample])
            for sample, one in zip(members.tolist(), reported, strict=True)
        }


def _rows_of(logits: Tensor, rows: IntArray) -> Tensor:
    """Consecutive ones, the usual case, aren't copied."""
    if (np.diff(rows) == 1).all():
        return logits[rows[0] : rows[-1] + 1]
    return logits.index_select(0, torch.from_numpy(rows).to(logits.device))


def _first(logprobs: TokenLogprobs, num_top: int | None) -> TokenLogprobs:
    if num_top == len(logprobs.top_ids):
        return logprobs
    return TokenLogprobs(
        logprobs.logprob, logprobs.top_ids[:num_top], logprobs.top_logprobs[:num_top]
    )
