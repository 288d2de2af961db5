"""Executes plans with torch: per-slot state, the KV pool, the model and the sampler.

Must not know requests: a sequence is a slot, a block table and a few numbers here.
"""

import numpy as np
import torch

from engine.attention.base import AttentionBackend, IntArray, RaggedBatch
from engine.errors import RunnerError
from engine.kv_pool import KvPool
from engine.models.llama import LlamaModel
from engine.sampler import Sampler
from engine.step import SampledToken, ScheduledSequence, StepPlan, StepResult


class TorchRunner:
    """A `ModelRunner` on one device."""

    def __init__(
        self,
        *,
        model: LlamaModel,
        kv_pool: KvPool,
        attention: AttentionBackend,
        device: torch.device,
        max_num_seqs: int,
        max_model_len: int,
        block_size_tokens: int,
        is_poisoning: bool,
    ) -> None:
        self._model = model
        self._kv_pool = kv_pool
        self._attention = attention
        self._device = device
        self._sampler = Sampler(max_num_seqs)
        self._block_size = block_size_tokens
        self._is_poisoning = is_poisoning
        max_blocks = -(-max_model_len // block_size_tokens)
        self._block_tables: IntArray = np.zeros((max_num_seqs, max_blocks), dtype=np.int64)
        self._num_blocks: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        self._last_sampled: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        if is_poisoning:
            kv_pool.poison()

    def execute(self, plan: StepPlan) -> StepResult:
        with torch.inference_mode():
            self._apply_deltas(plan)
            if not plan.scheduled:
                return StepResult(plan.step_id, ())
            return StepResult(plan.step_id, self._compute(plan.scheduled))

    def close(self) -> None:
        del self._model, self._kv_pool

    def _apply_deltas(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            self._num_blocks[slot] = 0
        if self._is_poisoning and plan.freed_block_ids:
            self._kv_pool.poison(plan.freed_block_ids)
        if plan.block_copies:
            self._kv_pool.copy(plan.block_copies)
        for admission in plan.admissions:
            self._num_blocks[admission.slot] = 0
            self._append_blocks(admission.slot, admission.block_ids)
            self._sampler.admit(admission.slot, admission.sampling)
        for sequence in plan.scheduled:
            if sequence.new_block_ids:
                self._append_blocks(sequence.slot, sequence.new_block_ids)

    def _append_blocks(self, slot: int, block_ids: tuple[int, ...]) -> None:
        begin = self._num_blocks[slot]
        end = begin + len(block_ids)
        self._block_tables[slot, begin:end] = block_ids
        self._num_blocks[slot] = end

    def _compute(self, scheduled: tuple[ScheduledSequence, ...]) -> tuple[SampledToken, ...]:
        slots = np.array([sequence.slot for sequence in scheduled], dtype=np.int64)
        batch = self._create_batch(scheduled, slots)
        token_ids = self._input_tokens(scheduled)
        hidden = self._model.forward(
            torch.from_numpy(token_ids).to(self._device),
            torch.from_numpy(batch.positions()).to(self._device),
            self._kv_pool.layers,
            self._attention.prepare(batch),
        )
        is_sampling = np.array([sequence.is_sampling for sequence in scheduled])
        if not is_sampling.any():
            return ()
        last_rows = (batch.token_starts + batch.num_tokens - 1)[is_sampling]
        if len(last_rows) < len(token_ids):
            hidden = hidden[torch.from_numpy(last_rows).to(self._device)]
        sampled = self._sampler.sample(
            self._model.logits(hidden),
            slots[is_sampling],
            batch.context_lens[is_sampling],
            rescore=lambda token_ids: self._model.exact_logits(hidden, token_ids),
        )
        self._last_sampled[slots[is_sampling]] = sampled
        return tuple(
            SampledToken(slot, token_id)
            for slot, token_id in zip(slots[is_sampling].tolist(), sampled.tolist(), strict=True)
        )

    def _create_batch(
        self, scheduled: tuple[ScheduledSequence, ...], slots: IntArray
    ) -> RaggedBatch:
        starts = np.array([sequence.start for sequence in scheduled], dtype=np.int64)
        num_tokens = np.array([sequence.num_tokens for sequence in scheduled], dtype=np.int64)
        needed = -(-(starts + num_tokens) // self._block_size)
        if (needed > self._num_blocks[slots]).any():
            raise RunnerError("the plan computes tokens beyond the block table of their slot.")
        tables = self._block_tables[slots, : needed.max()]
        return RaggedBatch(starts, num_tokens, tables, self._block_size)

    def _input_tokens(self, scheduled: tuple[ScheduledSequence, ...]) -> IntArray:
        token_ids: list[int] = []
        for sequence in scheduled:
            token_ids.extend(sequence.token_ids)
            if sequence.is_last_pending:
                token_ids.append(int(self._last_sampled[sequence.slot]))
        return np.array(token_ids, dtype=np.int64)
