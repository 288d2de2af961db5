"""Executes plans with torch: per-slot state, the KV pool, the model and the sampler.

Must not know requests: a sequence is a slot, its block tables and a few numbers here.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, IntArray, RaggedBatch
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.models.decoder import DecoderModel
from engine.prompt_logprobs import score_tokens
from engine.sampling.sampler import Sampler
from engine.slot_tables import SlotTables
from engine.step import (
    PromptLogprobs,
    SampledToken,
    ScheduledSequence,
    StepPlan,
    StepResult,
)


class TorchRunner:
    """A `ModelRunner` on one device."""

    def __init__(
        self,
        *,
        model: DecoderModel,
        geometry: KvGeometry,
        kv_pool: KvPool,
        attention: AttentionBackend,
        device: torch.device,
        max_num_seqs: int,
        max_request_tokens: int,
        is_poisoning: bool,
    ) -> None:
        self._model = model
        self._kv_pool = kv_pool
        self._attention = attention
        self._device = device
        self._is_poisoning = is_poisoning
        group_of = {
            layer: index for index, group in enumerate(geometry.groups) for layer in group.layers
        }
        self._group_of_layer = [group_of[layer] for layer in range(geometry.num_layers)]
        self._tables = SlotTables(geometry, num_slots=max_num_seqs, max_len=max_request_tokens)
        self._sampler = Sampler(max_num_seqs, model.config.vocab_size, device)
        self._num_prompt_tokens: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        self._last_sampled: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        if is_poisoning:
            kv_pool.poison()

    def execute(self, plan: StepPlan) -> StepResult:
        with torch.inference_mode():
            self._apply_deltas(plan)
            if not plan.scheduled:
                return StepResult(plan.step_id, ())
            batches = self._create_batches(plan.scheduled)
            hidden = self._forward(plan.scheduled, batches)
            return StepResult(
                plan.step_id,
                self._sample(plan.scheduled, batches[0], hidden),
                self._score_prompts(plan.scheduled, batches[0], hidden),
            )

    def close(self) -> None:
        del self._model, self._kv_pool

    def _apply_deltas(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            self._tables.clear(slot)
            self._sampler.release(slot)
        if self._is_poisoning and plan.freed_block_ids:
            self._kv_pool.poison(plan.freed_block_ids)
        if plan.block_copies:
            self._kv_pool.copy(plan.block_copies)
        for admission in plan.admissions:
            self._tables.admit(admission.slot, admission.block_tables)
            self._num_prompt_tokens[admission.slot] = admission.num_prompt_tokens
            self._sampler.admit(admission)
        for sequence in plan.scheduled:
            for update in sequence.table_updates:
                self._tables.update(sequence.slot, update)

    def _create_batches(self, scheduled: Sequence[ScheduledSequence]) -> list[RaggedBatch]:
        return self._tables.batches(
            np.array([sequence.slot for sequence in scheduled], dtype=np.int64),
            np.array([sequence.start for sequence in scheduled], dtype=np.int64),
            np.array([sequence.num_tokens for sequence in scheduled], dtype=np.int64),
        )

    def _forward(
        self, scheduled: Sequence[ScheduledSequence], batches: Sequence[RaggedBatch]
    ) -> Tensor:
        """Last hidden states of all new tokens."""
        steps = [self._attention.prepare(batch) for batch in batches]
        return self._model.forward(
            self._to_device(self._input_tokens(scheduled)),
            self._to_device(batches[0].positions()),
            self._kv_pool.layers,
            [steps[group] for group in self._group_of_layer],
        )

    def _input_tokens(self, scheduled: Sequence[ScheduledSequence]) -> IntArray:
        token_ids: list[int] = []
        for sequence in scheduled:
            token_ids.extend(sequence.token_ids)
            if sequence.is_last_pending:
                token_ids.append(int(self._last_sampled[sequence.slot]))
        return np.array(token_ids, dtype=np.int64)

    def _sample(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> tuple[SampledToken, ...]:
        """A token for each sampling slot; those that part at one position share its logits."""
        num_samples = np.array([len(sequence.sampling_slots) for sequence in scheduled])
        is_sampling = num_samples > 0
        if not is_sampling.any():
            return ()
        last_rows = (batch.token_starts + batch.num_tokens - 1)[is_sampling]
        if len(last_rows) < len(hidden):
            hidden = hidden[self._to_device(last_rows)]
        sampled = self._sampler.sample(
            self._model.logits(hidden),
            rows=np.repeat(np.arange(len(last_rows)), num_samples[is_sampling]),
            slots=np.array([slot for sequence in scheduled for slot in sequence.sampling_slots]),
            positions=np.repeat(batch.context_lens, num_samples),
            rescore=lambda token_ids: self._model.exact_logits(hidden, token_ids),
        )
        for token in sampled:
            # A token that could not be drawn ends its sequence, but may be input until that is
            # known.
            self._last_sampled[token.slot] = max(0, token.token_id)
        return tuple(sampled)

    def _score_prompts(
        self, scheduled: Sequence[ScheduledSequence], batch: RaggedBatch, hidden: Tensor
    ) -> tuple[PromptLogprobs, ...]:
        """Of the prompt tokens that each chunk predicts, which may be none."""
        scores: list[PromptLogprobs] = []
        for sequence, first_row in zip(scheduled, batch.token_starts.tolist(), strict=True):
            num_top = self._sampler.num_prompt_logprobs(sequence.slot)
            if num_top is None or sequence.start >= self._num_prompt_tokens[sequence.slot]:
                continue
            targets = list(sequence.token_ids[1:])
            if sequence.following_token_id is not None:
                targets.append(sequence.following_token_id)
            rows = hidden[first_row : first_row + len(targets)]
            logprobs = score_tokens(self._model, rows, np.array(targets, dtype=np.int64), num_top)
            scores.append(PromptLogprobs(sequence.slot, logprobs))
        return tuple(scores)

    def _to_device(self, values: IntArray) -> Tensor:
        return torch.from_numpy(values).to(self._device)
