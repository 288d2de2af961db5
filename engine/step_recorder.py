"""Counts what steps were since start, and makes the record of each. Takes time as an argument."""

from typing import Literal, NamedTuple

from engine.batch_efficiency import BatchEfficiency
from engine.block_manager import BlockManager
from engine.messages import FinishReason
from engine.observations import EngineStats, StepRecord
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.step import StepPlan
from engine.tier_desk import TierDesk


class StepTime(NamedTuple):
    """Of one step, on the engine's clock."""

    started_s: float
    ended_s: float

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.started_s


class StepRecorder:
    """Owner of the totals that ``EngineStats`` reports."""

    def __init__(self) -> None:
        self._num_finished = 0
        """Samples that had their last delta."""
        self._num_moved = 0
        self.num_failed_steps = 0
        self.num_leaked_blocks = 0
        self._num_steps = 0
        self._busy_time_s = 0.0
        self._num_out_of_memory_steps = 0
        self._num_computed_prompt_tokens = 0
        self._efficiency = BatchEfficiency()
        self._num_reported_preemptions = 0
        self._num_reported_again = 0
        self._num_reported_padding = 0
        self._num_reported_finished = 0

    def count_end(self, sequence: Sequence) -> None:
        """It had its last delta."""
        self._num_finished += 1
        self._num_moved += sequence.finish_reason is FinishReason.MOVED

    def record(
        self,
        plan: StepPlan,
        time: StepTime,
        scheduler: Scheduler,
        blocks: BlockManager,
        outcome: Literal["ok", "out_of_memory", "failed"],
    ) -> StepRecord:
        """Of a plan that was executed, or was tried; after all that followed from it."""
        num_prefill_tokens = count_prefill_tokens(plan)
        totals = scheduler.totals
        num_preemptions = totals.num_preemptions
        num_recomputed = totals.num_recomputed_tokens - self._num_reported_again
        num_padding = totals.num_padding_tokens - self._num_reported_padding
        record = StepRecord(
            step_id=plan.step_id,
            started_s=time.started_s,
            step_time_s=time.duration_s,
            num_prefill_tokens=num_prefill_tokens,
            num_decodes=sum([entry.is_last_pending for entry in plan.scheduled]),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_admitted=len(plan.admissions),
            num_preempted=num_preemptions - self._num_reported_preemptions,
            num_finished=self._num_finished - self._num_reported_finished,
            num_used_blocks=blocks.num_blocks - blocks.num_free_blocks,
            max_tokens=scheduler.limits.max_tokens,
            max_seqs=scheduler.limits.max_seqs,
            outcome=outcome,
            max_context_tokens=scheduler.limits.max_context_tokens,
            limit_reason=scheduler.limit_reason,
            num_recomputed_tokens=num_recomputed,
            num_padding_tokens=num_padding,
            num_loads=len(plan.loads),
            num_stores=len(plan.stores),
        )
        self._num_steps += 1
        self._busy_time_s += time.duration_s
        self._num_out_of_memory_steps += outcome == "out_of_memory"
        if outcome == "ok":
            self._num_computed_prompt_tokens += num_prefill_tokens
            self._efficiency.record(
                num_tokens=num_prefill_tokens + record.num_decodes,
                num_recomputed=num_recomputed,
                num_padding=num_padding,
                now_s=time.ended_s,
            )
        self._num_reported_preemptions = num_preemptions
        self._num_reported_again = totals.num_recomputed_tokens
        self._num_reported_padding = totals.num_padding_tokens
        self._num_reported_finished = self._num_finished
        return record

    def stats(self, scheduler: Scheduler, tiers: TierDesk | None = None) -> EngineStats:
        return EngineStats(
            num_steps=self._num_steps,
            busy_time_s=self._busy_time_s,
            num_failed_steps=self.num_failed_steps,
            num_out_of_memory_steps=self._num_out_of_memory_steps,
            num_leaked_blocks=self.num_leaked_blocks,
            num_computed_prompt_tokens=self._num_computed_prompt_tokens,
            num_recomputed_tokens=scheduler.totals.num_recomputed_tokens,
            num_kv_tokens=scheduler.num_kv_tokens,
            batch_efficiency=self._efficiency.share,
            num_moved=self._num_moved,
            tiers=None if tiers is None else tiers.stats(),
        )


def count_prefill_tokens(plan: StepPlan) -> int:
    """Tokens of prompts and of what is computed again: all chunks stand behind the decodes."""
    num_tokens = 0
    for entry in reversed(plan.scheduled):
        if entry.is_last_pending:
            break
        num_tokens += len(entry.token_ids)
    return num_tokens
