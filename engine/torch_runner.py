"""Executes plans with torch: per-slot state, the KV pool, the model, and what comes of its output.

Must not know requests: a sequence is a slot, its block tables and a few numbers here. One of
several ranks runs like the only one; the model and ``RowOutputs`` know the difference.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.attention.base import IntArray, RaggedBatch
from engine.errors import StepOutOfMemory
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.memory_errors import is_out_of_memory
from engine.row_outputs import RowOutputs
from engine.slot_tables import SlotTables
from engine.step import SampledToken, ScheduledSequence, StepPlan, StepResult
from engine.step_model import StepModel
from engine.step_probe import StepProbe


class TorchRunner:
    """A `ModelRunner` on one device."""

    def __init__(
        self,
        *,
        model: StepModel,
        geometry: KvGeometry,
        kv_pool: KvPool,
        outputs: RowOutputs,
        max_num_seqs: int,
        max_request_tokens: int,
        is_poisoning: bool,
        probe: StepProbe | None = None,
    ) -> None:
        self._probe = probe or StepProbe()
        self._model = model
        self._kv_pool = kv_pool
        self._outputs = outputs
        self._is_poisoning = is_poisoning
        self._tables = SlotTables(geometry, num_slots=max_num_seqs, max_len=max_request_tokens)
        self._last_sampled: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        if is_poisoning:
            kv_pool.poison()

    def execute(self, plan: StepPlan) -> StepResult:
        try:
            with torch.inference_mode():
                return self._run(plan)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        # Out here no traceback holds the tensors of the step any more.
        raise StepOutOfMemory(f"a step of {plan.num_tokens} tokens ran out of memory: {reason}")

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        for token in sampled:
            # A token that could not be drawn ends its sequence, but may be input until that is
            # known.
            self._last_sampled[token.slot] = max(0, token.token_id)

    def close(self) -> None:
        del self._model, self._kv_pool, self._outputs

    def _run(self, plan: StepPlan) -> StepResult:
        self._apply_deltas(plan)
        if not plan.scheduled:
            return StepResult(plan.step_id, ())
        batches = self._create_batches(plan.scheduled)
        token_ids = self._input_tokens(plan.scheduled)
        with self._probe.part("model"):
            hidden = self._model.forward(token_ids, batches)
        with self._probe.part("outputs"):
            sampled = self._outputs.sample(plan.scheduled, batches[0], hidden)
            prompt_logprobs = self._outputs.score_prompts(plan.scheduled, batches[0], hidden)
        self.take_sampled(sampled)
        return StepResult(plan.step_id, sampled, prompt_logprobs)

    def _apply_deltas(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            self._tables.clear(slot)
            self._outputs.release(slot)
        if self._is_poisoning and plan.freed_block_ids:
            self._kv_pool.poison(plan.freed_block_ids)
        if plan.block_copies:
            self._kv_pool.copy(plan.block_copies)
        for admission in plan.admissions:
            self._tables.admit(admission.slot, admission.block_tables)
            self._outputs.admit(admission)
        for sequence in plan.scheduled:
            for update in sequence.table_updates:
                self._tables.update(sequence.slot, update)

    def _create_batches(self, scheduled: Sequence[ScheduledSequence]) -> list[RaggedBatch]:
        return self._tables.batches(
            np.array([sequence.slot for sequence in scheduled], dtype=np.int64),
            np.array([sequence.start for sequence in scheduled], dtype=np.int64),
            np.array([sequence.num_tokens for sequence in scheduled], dtype=np.int64),
        )

    def _input_tokens(self, scheduled: Sequence[ScheduledSequence]) -> IntArray:
        token_ids: list[int] = []
        for sequence in scheduled:
            token_ids.extend(sequence.token_ids)
            if sequence.is_last_pending:
                token_ids.append(int(self._last_sampled[sequence.slot]))
        return np.array(token_ids, dtype=np.int64)
