"""What comes of the last hidden states of a step: tokens, and log probabilities of prompts.

Rank 0 samples; the others only hold parts of the logits, and go the same way through the step
without them, so that all ranks meet in the same collectives. Must not know block tables or KV.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import IntArray, RaggedBatch
from engine.models.output_head import OutputHead
from engine.prompt_logprobs import follow_scoring, score_tokens
from engine.sampling.kernels import SamplingKernels
from engine.sampling.sampler import Sampler
from engine.step import Admission, PromptLogprobs, SampledToken, ScheduledSequence


class RowOutputs(Protocol):
    """Of one rank. State per slot: how it samples, from ``admit`` to ``release``."""

    def admit(self, admission: Admission) -> None: ...

    def release(self, slot: int) -> None:
        """Slots that hold nothing are skipped."""
        ...

    def sample(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> tuple[SampledToken, ...]:
        """A token for each sampling slot; ``hidden`` are the last hidden states of all tokens."""
        ...

    def score_prompts(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> tuple[PromptLogprobs, ...]:
        """Of the prompt tokens that each chunk predicts, which may be none."""
        ...


class SampledOutputs:
    """On rank 0."""

    def __init__(
        self,
        head: OutputHead,
        max_num_seqs: int,
        device: torch.device,
        kernels: SamplingKernels | None = None,
    ) -> None:
        self._head = head
        self._has_kernels = kernels is not None
        self._sampler = Sampler(max_num_seqs, head.config.vocab_size, device, kernels)
        self._prompts = _ScoredPrompts(max_num_seqs)

    def admit(self, admission: Admission) -> None:
        self._prompts.admit(admission)
        self._sampler.admit(admission)

    def release(self, slot: int) -> None:
        self._sampler.release(slot)

    def sample(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> tuple[SampledToken, ...]:
        """Slots that part at one position share its logits."""
        rows = _sampling_rows(scheduled, batch, hidden)
        if rows is None:
            return ()
        num_samples = np.array([len(sequence.sampling_slots) for sequence in scheduled])
        rows_of_samples = np.repeat(np.arange(len(rows)), num_samples[num_samples > 0])
        slots = np.array([slot for sequence in scheduled for slot in sequence.sampling_slots])
        head, is_exact = self._head, self._head.is_exact
        picked = margins = None
        if head.can_pick:
            wishes = np.zeros(len(rows), dtype=np.uint8)
            np.bitwise_or.at(wishes, rows_of_samples, self._sampler.wishes(slots))
            logits, picked = head.pick(rows, wishes)
        else:
            margins = head.margins(rows) if self._has_kernels and not is_exact else None
            logits = head.logits(rows)
        sampled = self._sampler.sample(
            logits,
            rows=rows_of_samples,
            slots=slots,
            positions=np.repeat(batch.context_lens, num_samples),
            rescore=None if is_exact else lambda token_ids: head.exact_logits(rows, token_ids),
            margins=None if margins is None else margins.numpy(),
            picked=picked,
        )
        self._head.finish_rows()
        return tuple(sampled)

    def score_prompts(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> tuple[PromptLogprobs, ...]:
        return tuple(
            PromptLogprobs(
                chunk.slot, score_tokens(self._head, chunk.rows, chunk.targets, chunk.num_top)
            )
            for chunk in self._prompts.chunks(scheduled, batch, hidden)
        )


class FollowedOutputs:
    """On the other ranks, whose results are empty."""

    def __init__(self, head: OutputHead, max_num_seqs: int) -> None:
        self._head = head
        self._prompts = _ScoredPrompts(max_num_seqs)

    def admit(self, admission: Admission) -> None:
        self._prompts.admit(admission)

    def release(self, slot: int) -> None:
        """What is known of a slot is replaced at its next admission."""

    def sample(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> tuple[SampledToken, ...]:
        rows = _sampling_rows(scheduled, batch, hidden)
        if rows is not None:
            self._head.follow_rows(rows)
        return ()

    def score_prompts(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> tuple[PromptLogprobs, ...]:
        for chunk in self._prompts.chunks(scheduled, batch, hidden):
            follow_scoring(self._head, chunk.rows)
        return ()


class _ScoredChunk(NamedTuple):
    slot: int
    rows: Tensor
    """[num_targets, hidden_size]"""
    targets: IntArray
    """The token after each row."""
    num_top: int


class _ScoredPrompts:
    """Owner of what each slot wants to know of its prompt."""

    def __init__(self, max_num_seqs: int) -> None:
        self._num_top: list[int | None] = [None] * max_num_seqs
        self._num_prompt_tokens = [0] * max_num_seqs

    def admit(self, admission: Admission) -> None:
        self._num_top[admission.slot] = admission.sampling.num_prompt_logprobs
        self._num_prompt_tokens[admission.slot] = admission.num_prompt_tokens

    def chunks(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> Iterator[_ScoredChunk]:
        for sequence, first_row in zip(scheduled, batch.token_starts.tolist(), strict=True):
            num_top = self._num_top[sequence.slot]
            if num_top is None or sequence.start >= self._num_prompt_tokens[sequence.slot]:
                continue
            targets = list(sequence.token_ids[1:])
            if sequence.following_token_id is not None:
                targets.append(sequence.following_token_id)
            rows = hidden[first_row : first_row + len(targets)]
            yield _ScoredChunk(sequence.slot, rows, np.array(targets, dtype=np.int64), num_top)


def _sampling_rows(
    scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
) -> Tensor | None:
    """[num_rows, hidden_size] Of the sequences that sample, at their last token; None if none
    does."""
    is_sampling = np.array([bool(sequence.sampling_slots) for sequence in scheduled])
    if not is_sampling.any():
        return None
    last_rows = (batch.token_starts + batch.num_tokens - 1)[is_sampling]
    if len(last_rows) == len(hidden):
        return hidden
    return hidden[torch.from_numpy(last_rows).to(hidden.device)]
