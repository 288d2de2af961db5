"""Logit bias, minimum length and penalties: changes to the logits of a few tokens per sequence.

One entry per token that a sequence has seen, biases or must not sample yet. A logit x becomes,
in this order,

    x + bias                                             -infinity for a masked stop token
    x / repetition_penalty if x > 0, else x * it         tokens of the prompt or the answer
    x - presence_penalty - count * frequency_penalty     tokens of the answer

The first two are transformers' SequenceBias, MinNewTokensLength and RepetitionPenalty processors in
their order, the third is OpenAI's formula; vLLM has the same order. Only the entries are touched:
a count per token of the vocabulary would cost more than the whole sampling. Must not know
temperatures and filters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.messages import SamplingParams
from engine.step import Admission

_BIAS, _FACTOR, _SUBTRACT = range(3)
_NO_CHANGE = np.array([[0.0], [1.0], [0.0]], dtype=np.float32)
_LARGEST = 1e30
"""Where absurd parameters and what they make of a logit stop, so that sums and quotients in float32
stay finite."""


class SlotAdjustments:
    """The entries of one sequence. Owner: the `Sampler`, from admission to release."""

    def __init__(self, admission: Admission, vocab_size: int) -> None:
        self._sampling = admission.sampling
        self._num_prompt_tokens = admission.num_prompt_tokens
        self._vocab_size = vocab_size
        self._places: dict[int, int] = {}
        self._counts: list[int] = []  # of generated tokens, by place
        self._ids: NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        self._terms = np.repeat(_NO_CHANGE, 64, axis=1)  # [3, capacity]
        self._biases = dict(self._sampling.logit_bias)
        self._factor = max(1 / _LARGEST, _bounded(self._sampling.repetition_penalty))
        self._enter(self._biases)
        for token_id, bias in self._biases.items():
            self._terms[_BIAS, self._places[token_id]] = _bounded(bias)
        self._is_masking = False
        if self._sampling.min_tokens > 0:
            self._mask_stop_tokens()
        if has_penalties(self._sampling):
            seen = dict.fromkeys(admission.past_token_ids)
            self._enter(seen)
            places = [self._places[token_id] for token_id in seen]
            self._terms[_FACTOR, places] = self._factor
            for token_id in admission.past_token_ids[self._num_prompt_tokens :]:
                self.remember(token_id)

    @staticmethod
    def are_needed(sampling: SamplingParams) -> bool:
        is_masking = sampling.min_tokens > 0 and bool(sampling.stop_token_ids)
        return bool(sampling.logit_bias) or is_masking or has_penalties(sampling)

    def remember(self, token_id: int) -> None:
        """``token_id`` was generated."""
        if not has_penalties(self._sampling):
            return
        self._enter((token_id,))
        place = self._places[token_id]
        self._counts[place] += 1
        self._terms[_FACTOR, place] = self._factor
        self._terms[_SUBTRACT, place] = _bounded(
            self._sampling.presence_penalty + self._counts[place] * self._sampling.frequency_penalty
        )

    def ids(self) -> NDArray[np.int64]:
        """[num_entries]"""
        return self._ids[: len(self._counts)]

    def terms(self, position: int) -> NDArray[np.float32]:
        """[3, num_entries] Bias, factor and what is subtracted, for a token at ``position``."""
        if self._is_masking and position - self._num_prompt_tokens >= self._sampling.min_tokens:
            self._unmask_stop_tokens()
        return self._terms[:, : len(self._counts)]

    @property
    def is_masking(self) -> bool:
        """Whether stop tokens are kept out; true until `terms` of a late enough position."""
        return self._is_masking

    def _mask_stop_tokens(self) -> None:
        stop_ids = self._sampling.stop_token_ids
        self._enter(stop_ids)
        self._terms[_BIAS, [self._places[token_id] for token_id in stop_ids]] = -np.inf
        self._is_masking = True

    def _unmask_stop_tokens(self) -> None:
        for token_id in self._sampling.stop_token_ids:
            bias = _bounded(self._biases.get(token_id, 0.0))
            self._terms[_BIAS, self._places[token_id]] = bias
        self._is_masking = False

    def _enter(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if token_id in self._places:
                continue
            assert 0 <= token_id < self._vocab_size, f"token id {token_id} was not validated"
            place = len(self._counts)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                more = np.repeat(_NO_CHANGE, place, axis=1)
                self._terms = np.concatenate([self._terms, more], axis=1)
            self._ids[place] = token_id
            self._places[token_id] = place
            self._counts.append(0)


def has_penalties(sampling: SamplingParams) -> bool:
    """Whether sampling depends on the tokens before."""
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def _bounded(value: float) -> float:
    return min(max(value, -_LARGEST), _LARGEST)


@dataclass(frozen=True, slots=True)
class BatchAdjustments:
    """The entries of a batch, on its device."""

    keys: Tensor
    """[num_entries] Row times vocabulary size plus token id; no two are equal."""
    terms: Tensor
    """[3, num_entries]"""
    is_masking: bool

    @classmethod
    def collect(
        cls,
        slots: Sequence[SlotAdjustments | None],
        positions: NDArray[np.int64],
        vocab_size: int,
        device: torch.device,
    ) -> "BatchAdjustments | None":
        """``slots`` and ``positions`` of each row; None if no row has an entry."""
        entries = [(row, slot) for row, slot in enumerate(slots) if slot is not None]
        if not entries:
            return None
        keys = np.concatenate([slot.ids() + row * vocab_size for row, slot in entries])
        terms = np.concatenate([slot.terms(int(positions[row])) for row, slot in entries], axis=1)
        return cls(
            torch.from_numpy(keys).to(device),
            torch.from_numpy(terms).to(device),
            is_masking=any(slot.is_masking for _, slot in entries),
        )

    def applied_to(self, scores: Tensor, *, is_in_place: bool = False) -> Tensor:
        """``scores`` [num_rows, vocab_size] in float32, or a copy of them, changed.

        A row where nothing would be left keeps its scores: the request asked for the impossible
        (every token masked), and an answer is better than none.
        """
        changed = scores if is_in_place else scores.clone(memory_format=torch.contiguous_format)
        flat = changed.view(-1)
        raw = flat.index_select(0, self.keys)
        adjusted = raw + self.terms[_BIAS]
        factor = self.terms[_FACTOR]
        adjusted = torch.where(adjusted < 0, adjusted * factor, adjusted / factor)
        adjusted = (adjusted - self.terms[_SUBTRACT]).clamp(-_LARGEST, _LARGEST)
        if not self.is_masking:
            flat.scatter_(0, self.keys, adjusted)
            return changed
        adjusted = adjusted.masked_fill(self.terms[_BIAS] == -torch.inf, -torch.inf)
        flat.scatter_(0, self.keys, adjusted)
        is_empty = changed.amax(dim=-1) == -torch.inf
        if is_empty.any():
            rows = self.keys // scores.shape[-1]
            flat.scatter_(0, self.keys, torch.where(is_empty[rows], raw, adjusted))
        return changed
