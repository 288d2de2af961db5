"""Executes plans with torch: per-slot state, the KV pool, the model, and what comes of its output.

Must not know requests: a sequence is a slot, its block tables and a few numbers here. One of
several ranks runs like the only one; the model and ``RowOutputs`` know the difference.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch

from cache_tiers.block_image import ImageLayout
from engine.attention.base import IntArray, RaggedBatch
from engine.errors import KvMemoryError, StepOutOfMemory
from engine.kv_geometry import KvGeometry
from engine.kv_images import RankImages
from engine.kv_pool import KvPool
from engine.kv_transfer import KvTransfer
from engine.memory_errors import is_out_of_memory
from engine.row_outputs import RowOutputs
from engine.slot_tables import SlotTables
from engine.step import (
    BlockTransfer,
    PromptLogprobs,
    SampledToken,
    ScheduledSequence,
    StepPlan,
    StepResult,
)
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
        rank: int = 0,
        num_threads: int = 1,
        probe: StepProbe | None = None,
    ) -> None:
        """``num_threads``: that copy KV."""
        self._probe = probe or StepProbe()
        self._model = model
        self._kv_pool = kv_pool
        self._outputs = outputs
        self._is_poisoning = is_poisoning
        self._rank = rank
        self._num_threads = num_threads
        self._transfer: KvTransfer | None = None
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
            reason = _first_line(error)
        # Out here no traceback holds the tensors of the step any more.
        raise StepOutOfMemory(f"a step of {plan.num_tokens} tokens ran out of memory: {reason}")

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        for token in sampled:
            # A token that could not be drawn ends its sequence, but may be input until that is
            # known.
            self._last_sampled[token.slot] = max(0, token.token_id)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        """Of this rank alone, which needs no ``socket_path``."""
        self.detach_arena()
        images = RankImages(arena, layout, self._rank)
        self._transfer = KvTransfer(self._kv_pool, images, num_threads=self._num_threads)

    def detach_arena(self) -> None:
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None

    def free_kv(self) -> None:
        """Weights stay where they are, also on a device: only the pool goes."""
        with torch.inference_mode():
            self._kv_pool.free()

    def allocate_kv(self) -> None:
        try:
            with torch.inference_mode():
                self._kv_pool.allocate()
                if self._is_poisoning:
                    self._kv_pool.poison()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise KvMemoryError(f"the KV pool finds no memory: {_first_line(error)}") from None

    def close(self) -> None:
        self.detach_arena()
        del self._model, self._kv_pool, self._outputs

    def _run(self, plan: StepPlan) -> StepResult:
        started_s = time.perf_counter()
        if plan.stores:
            self._attached.store(plan.stores)
        transfer_s = time.perf_counter() - started_s
        self._release(plan)
        started_s = time.perf_counter()
        failed_loads = self._load(plan.loads)
        transfer_s += time.perf_counter() - started_s
        self._apply_deltas(plan)
        sampled, prompt_logprobs = self._compute(plan.scheduled)
        differing = self._attached.compare(plan.comparisons) if plan.comparisons else ()
        return StepResult(
            plan.step_id,
            sampled,
            prompt_logprobs,
            failed_loads=failed_loads,
            transfer_s=transfer_s,
            differing=differing,
        )

    @property
    def _attached(self) -> KvTransfer:
        assert self._transfer is not None, "a plan moves KV, but no arena was attached"
        return self._transfer

    def _load(self, loads: Sequence[BlockTransfer]) -> tuple[int, ...]:
        failed = self._attached.load(loads) if loads else ()
        if self._is_poisoning and failed:
            self._kv_pool.poison([loads[index].block_id for index in failed])
        return failed

    def _compute(
        self, scheduled: Sequence[ScheduledSequence]
    ) -> tuple[tuple[SampledToken, ...], tuple[PromptLogprobs, ...]]:
        if not scheduled:
            return (), ()
        batches = self._create_batches(scheduled)
        token_ids = self._input_tokens(scheduled)
        with self._probe.part("model"):
            hidden = self._model.forward(token_ids, batches)
        with self._probe.part("outputs"):
            sampled = self._outputs.sample(scheduled, batches[0], hidden)
            prompt_logprobs = self._outputs.score_prompts(scheduled, batches[0], hidden)
        self.take_sampled(sampled)
        return sampled, prompt_logprobs

    def _release(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            self._tables.clear(slot)
            self._outputs.release(slot)
        if self._is_poisoning and plan.freed_block_ids:
            self._kv_pool.poison(plan.freed_block_ids)

    def _apply_deltas(self, plan: StepPlan) -> None:
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


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
