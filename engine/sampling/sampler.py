"""From logits to tokens: who is adjusted, who is greedy, who is drawn, and what is reported.

Every token is a pure function of its row's logits, its sequence's parameters and past, and
(seed, position), so that preemption, migration and the rest of the batch don't change it. Must not
know sequences, only slots.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.base import IntArray
from engine.layers.greedy_head import RowWish, Wishes
from engine.messages import TokenLogprobs
from engine.sampling.adjustments import BatchAdjustments, SlotAdjustments
from engine.sampling.chunking import rows_per_chunk
from engine.sampling.drawing import DrawParams, draw_filtered, draw_unfiltered
from engine.sampling.greedy import pick_among_near, pick_greedily
from engine.sampling.kernels import SamplingKernels
from engine.sampling.logprobs import token_logprobs
from engine.sampling.randomness import uniform
from engine.sampling.rescoring import Rescore, for_samples
from engine.step import Admission, SampledToken

__all__ = ["Rescore", "Sampler"]

FloatArray = NDArray[np.float32]
FloatColumns = NDArray[np.float64]
_Draw = Callable[[Tensor, DrawParams], Tensor]

_GREEDY_CHUNK_FACTOR = 4
"""Greedy rows need few copies, and every chunk of them costs a rescoring."""


class Sampler:
    """Owner of the sampling state of every slot: parameters, and tokens that penalties count."""

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        device: torch.device,
        kernels: SamplingKernels | None = None,
    ) -> None:
        """``kernels`` take what they can; torch the rest."""
        self._vocab_size = vocab_size
        self._kernels = kernels
        self._temperature = np.zeros(num_slots, dtype=np.float32)
        self._top_k = np.full(num_slots, vocab_size, dtype=np.int64)
        self._top_p = np.ones(num_slots, dtype=np.float64)
        self._min_p = np.zeros(num_slots, dtype=np.float64)
        self._seed = np.zeros(num_slots, dtype=np.uint64)
        self._num_logprobs: list[int | None] = [None] * num_slots
        self._adjustments: dict[int, SlotAdjustments] = {}
        self._wishes: Wishes = np.full(num_slots, RowWish.KEEP_LOGITS, dtype=np.uint8)

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
        self._wishes[slot] = self._wish(slot)

    def release(self, slot: int) -> None:
        """Forget the sequence's tokens; slots that hold none are skipped."""
        self._adjustments.pop(slot, None)

    def wishes(self, slots: IntArray) -> Wishes:
        """[num_samples] What ``sample`` needs of the rows of ``slots`` if a head can choose tokens,
        which it can for greedy samples whose logits nothing changes."""
        return self._wishes[slots]

    def sample(
        self,
        logits: Tensor,
        rows: IntArray,
        slots: IntArray,
        positions: IntArray,
        rescore: Rescore | None = None,
        margins: FloatArray | None = None,
        picked: IntArray | None = None,
    ) -> list[SampledToken]:
        """One token per sample, from row ``rows[i]`` of ``logits`` [num_rows, vocab_size], which
        stay as they are.

        ``positions`` are those that the new tokens will have. ``rescore`` gives exact logits; it is
        there if ``logits`` are coarse. Then ``margins`` [num_rows], if known, say by how much a
        logit of a row must exceed another one to be larger for certain. ``picked`` [num_rows] are
        tokens that ``wishes`` asked for; then ``logits`` hold what it asked for, too. A row with
        NaN or infinite logits yields no token but -1.
        """
        assert logits.shape[-1] == self._vocab_size, "the model's vocabulary is another one"
        if not len(slots):
            return []
        batch = _Batch(logits, rows, slots, positions, rescore, margins)
        token_ids = self._choose_rest(batch, picked)
        chosen = list(zip(slots.tolist(), token_ids.tolist(), strict=True))
        if (self._wishes[slots] == RowWish.PICK_TOKEN).all():
            return [SampledToken(slot, token_id) for slot, token_id in chosen]
        for slot, token_id in chosen:
            if slot in self._adjustments and token_id >= 0:
                self._adjustments[slot].remember(token_id)
        logprobs = self._logprobs(batch, token_ids)
        return [
            SampledToken(slot, token_id, logprobs.get(sample))
            for sample, (slot, token_id) in enumerate(chosen)
        ]

    def _wish(self, slot: int) -> RowWish:
        if self._temperature[slot] > 0 or slot in self._adjustments:
            return RowWish.KEEP_LOGITS
        if self._num_logprobs[slot] is not None:
            return RowWish.PICK_TOKEN | RowWish.KEEP_LOGITS
        return RowWish.PICK_TOKEN

    def _choose_rest(self, batch: "_Batch", picked: IntArray | None) -> IntArray:
        """[num_samples] Token ids: of those that are picked, and of the others."""
        choose = self._choose
        if self._kernels is not None and _is_plain(batch.logits):
            choose = self._choose_by_kernels
        if picked is None:
            return choose(batch)
        token_ids: IntArray = picked[batch.rows]
        others = np.flatnonzero((self._wishes[batch.slots] & RowWish.PICK_TOKEN) == 0)
        if len(others):
            token_ids[others] = choose(batch.of(others))
        return token_ids

    def _choose(self, batch: "_Batch") -> IntArray:
        """[num_samples] Token ids, -1 for rows that are not finite, by torch: those that go the
        same way together, not too many at a time."""
        device, slots = batch.logits.device, batch.slots
        sampled = torch.empty(len(slots), dtype=torch.int64, device=device)
        is_greedy = self._temperature[slots] == 0
        is_filtered = (
            (self._top_k[slots] < self._vocab_size)
            | (self._top_p[slots] < 1)
            | (self._min_p[slots] > 0)
        )
        num_rows = rows_per_chunk(batch.logits)
        for is_member, way, num_members in (
            (is_greedy, self._pick, num_rows * _GREEDY_CHUNK_FACTOR),
            (~is_greedy & is_filtered, partial(self._draw, draw_filtered), num_rows),
            (~is_greedy & ~is_filtered, partial(self._draw, draw_unfiltered), num_rows),
        ):
            for members in _chunks(is_member, num_members):
                sampled[torch.from_numpy(members).to(device)] = way(batch.of(members))
        return sampled.cpu().numpy()

    def _choose_by_kernels(self, batch: "_Batch") -> IntArray:
        """The same, of float32 logits. Rows that are adjusted are copied for it."""
        slots = batch.slots
        token_ids: IntArray = np.empty(len(slots), dtype=np.int64)
        is_greedy = self._temperature[slots] == 0
        is_adjusted = np.zeros(len(slots), dtype=np.bool_)
        if self._adjustments:
            is_adjusted[:] = [slot in self._adjustments for slot in slots.tolist()]
        # Without margins nothing is known of the logits' errors.
        is_sought = is_greedy & ~is_adjusted & (batch.rescore is None or batch.margins is not None)
        num_rows = rows_per_chunk(batch.logits)
        for is_member, way, num_members in (
            (is_sought, self._seek, len(slots)),
            (is_greedy & ~is_sought, self._pick, num_rows * _GREEDY_CHUNK_FACTOR),
            (~is_greedy & ~is_adjusted, self._draw_plain, len(slots)),
            (~is_greedy & is_adjusted, self._draw_adjusted, num_rows),
        ):
            for members in _chunks(is_member, num_members):
                token_ids[members] = way(batch.of(members))
        return token_ids

    def _pick(self, batch: "_Batch") -> Tensor:
        adjustments = self._collect_adjustments(batch)
        return pick_greedily(batch.own_logits(), adjustments, batch.own_rescore())

    def _draw(self, draw: _Draw, batch: "_Batch") -> Tensor:
        scores, is_finite = self._scores(batch)
        params = DrawParams.on_device(self._columns(batch), scores.device)
        return draw(scores, params).masked_fill(~is_finite, -1)

    def _seek(self, batch: "_Batch") -> IntArray:
        assert self._kernels is not None
        margins = np.zeros(len(batch.rows), dtype=np.float32)
        if batch.margins is not None:
            margins = batch.margins[batch.rows]
        near = self._kernels.find_near_largest(batch.logits, batch.rows, margins)
        return pick_among_near(near, batch.own_rescore())

    def _draw_plain(self, batch: "_Batch") -> IntArray:
        assert self._kernels is not None
        return self._kernels.draw(batch.logits, batch.rows, self._columns(batch))

    def _draw_adjusted(self, batch: "_Batch") -> IntArray:
        assert self._kernels is not None
        scores, is_finite = self._scores(batch)
        tokens = self._kernels.draw(scores, np.arange(len(scores)), self._columns(batch))
        return np.where(is_finite.numpy(), tokens, -1)

    def _scores(self, batch: "_Batch") -> tuple[Tensor, Tensor]:
        """[num_samples, vocab_size] in float32, adjusted, and [num_samples] whether the logits were
        finite."""
        scores = batch.own_logits().float()
        is_finite = scores.amax(dim=-1).isfinite()
        adjustments = self._collect_adjustments(batch)
        if adjustments is not None:
            is_copy = batch.logits.dtype is not torch.float32
            scores = adjustments.applied_to(scores, is_in_place=is_copy)
        return scores, is_finite

    def _collect_adjustments(self, batch: "_Batch") -> BatchAdjustments | None:
        return BatchAdjustments.collect(
            [self._adjustments.get(slot) for slot in batch.slots.tolist()],
            batch.positions,
            self._vocab_size,
            batch.logits.device,
        )

    def _columns(self, batch: "_Batch") -> FloatColumns:
        """[5, num_samples] The fields of `DrawParams`."""
        slots = batch.slots
        columns = [
            self._temperature[slots].astype(np.float64),
            self._top_k[slots].astype(np.float64),
            self._top_p[slots],
            self._min_p[slots],
            uniform(self._seed[slots], batch.positions),
        ]
        return np.stack(columns)

    def _logprobs(self, batch: "_Batch", token_ids: IntArray) -> dict[int, TokenLogprobs]:
        """By sample, of those that ask for it."""
        wanted = [self._num_logprobs[slot] for slot in batch.slots.tolist()]
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
        asking = batch.of(members)
        reported = token_logprobs(
            asking.own_logits(), token_ids[members], most, asking.own_rescore()
        )
        return {
            sample: _first(one, wanted[sample])
            for sample, one in zip(members.tolist(), reported, strict=True)
        }


@dataclass(frozen=True, slots=True)
class _Batch:
    """Samples, and the logits that they share; see `Sampler.sample`."""

    logits: Tensor
    rows: IntArray
    slots: IntArray
    positions: IntArray
    rescore: Rescore | None
    margins: FloatArray | None

    def of(self, members: IntArray) -> "_Batch":
        """Some of the samples, in the order given; the usual case is all of them."""
        if len(members) == len(self.slots):
            return self
        return _Batch(
            self.logits,
            self.rows[members],
            self.slots[members],
            self.positions[members],
            self.rescore,
            self.margins,
        )

    def own_logits(self) -> Tensor:
        """[num_samples, vocab_size] A row for each sample. Consecutive ones, the usual case, aren't
        copied."""
        rows = self.rows
        if (np.diff(rows) == 1).all():
            return self.logits[rows[0] : rows[-1] + 1]
        return self.logits.index_select(0, torch.from_numpy(rows).to(self.logits.device))

    def own_rescore(self) -> Rescore | None:
        """For samples instead of rows."""
        if self.rescore is None:
            return None
        return for_samples(self.rescore, self.rows, len(self.logits))


def _is_plain(logits: Tensor) -> bool:
    """Whether kernels can read them."""
    return logits.dtype is torch.float32 and logits.is_contiguous()


def _chunks(is_member: NDArray[np.bool_], chunk_len: int) -> Iterator[IntArray]:
    members = np.flatnonzero(is_member)
    for start in range(0, len(members), chunk_len):
        yield members[start : start + chunk_len]


def _first(logprobs: TokenLogprobs, num_top: int | None) -> TokenLogprobs:
    if num_top == len(logprobs.top_ids):
        return logprobs
    return TokenLogprobs(
        logprobs.logprob, logprobs.top_ids[:num_top], logprobs.top_logprobs[:num_top]
    )
