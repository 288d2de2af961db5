"""Decides what every step computes: one token budget, decodes first, prefill chunks with the rest.

Everybody has a fixed place in one order: arrival, put off by class. The running and the waiting
each stand in it; a waiting one may come before running ones when it came late with an early place
or found no room. A sequence is admitted, always the first that waits, once its whole uncached
prompt fits the KV pool and the answers of all are expected to; the budget for prompts goes to
running and waiting ones in order, so that a long prompt pauses for a more urgent one. The samples
of one request stand one after the other; when the first has computed the prompt, the others are
forked from it: they share its blocks and draw their first token from the same row.

Who gives way computes again later, with what the prefix cache has kept. When decodes run out of
blocks that is the last in the order. When the first that waits finds no place, it is those of a
lower class that come after it: these can never take it back. Call order: ``plan``, execution
elsewhere, ``commit`` or ``give_up``; ``add`` and ``finish`` between steps. Pure bookkeeping: must
not know clocks, tensors or transport.
"""

from dataclasses import dataclass

from engine.admission_control import AdmissionControl
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.kv_demand import KvDemand, create_kv_demand
from engine.messages import FinishReason
from engine.notes import Notes
from engine.observations import LimitReason
from engine.plan_draft import PlanDraft
from engine.result_match import match_result
from engine.running_set import RunningSet
from engine.sequence import Sequence
from engine.step import ScheduledSequence, StepPlan, StepResult, TableUpdate
from engine.step_limits import StepLimits
from engine.step_time import StepWork
from engine.waiting_queue import WaitingQueue


@dataclass(slots=True)
class SchedulerTotals:
    """Counts since start."""

    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    """Of admitted requests; a preempted one counts once."""
    num_cached_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_recomputed_tokens: int = 0
    """Computed again by sequences that gave way."""
    num_padding_tokens: int = 0
    """Computed by the runner beside what was planned."""


class Scheduler:
    """Owner of all sequences and slots of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        notes: Notes | None = None,
        limits: StepLimits | None = None,
        demand: KvDemand | None = None,
    ) -> None:
        self._blocks = blocks
        self._notes = notes or Notes()
        self._waiting = WaitingQueue()
        self._running = RunningSet(config.max_num_seqs)
        self._num_added = 0
        self._num_steps = 0
        self.limits = limits or StepLimits(config)
        self._demand = demand or create_kv_demand(config.kv_admission, blocks)
        self._admission = AdmissionControl(blocks, self._running, self.limits, self._demand)
        self.totals = SchedulerTotals()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> list[Sequence]:
        """In order, to look at between steps; always the same list."""
        return self._running.sequences

    @property
    def num_waiting_tokens(self) -> int:
        """Of waiting sequences, what must be computed before they decode."""
        return sum([s.num_tokens - s.num_expected_hit_tokens for s in self._waiting])

    @property
    def num_running_prefill_tokens(self) -> int:
        """Of admitted sequences, what must be computed before they decode."""
        return sum([s.num_uncomputed_tokens - s.is_last_on_device for s in self._running.sequences])

    @property
    def limit_reason(self) -> LimitReason:
        """Why no more is computed in a step."""
        if self._waiting and not self._admission.has_room_for_context(self._waiting.first):
            return "length"
        return self.limits.reason

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that running sequences have KV of; shared ones count for each."""
        return sum([s.num_computed_tokens for s in self._running.sequences])

    def add(self, samples: list[Sequence]) -> None:
        """Queue all samples of a request; each fits the pool by itself."""
        first, *others = samples
        first.num_expected_hit_tokens = self._blocks.find_prefix(first).num_tokens
        for sequence in others:
            sequence.num_expected_hit_tokens = sequence.num_tokens  # the first computes it for all
        self._num_added += 1
        for sequence in samples:
            sequence.order = (sequence.due_s, self._num_added, sequence.index)
        self._waiting.add(samples)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out between steps, whatever it was doing."""
        if sequence.slot is None:
            self._waiting.remove(sequence)
        self._end(sequence)

    def plan(self) -> StepPlan | None:
        """The next step, or ``None`` when no sequence is here."""
        if not self._running and not self._waiting:
            return None
        if self._waiting:
            self._make_way()
        draft = PlanDraft()
        unfinished = self._plan_decodes(draft)
        if unfinished or self._waiting:
            self._plan_prompts(draft, unfinished, self._prompt_budget())
        assert draft.scheduled, "sequences are here, but none of them can advance"
        return self._seal(draft)

    def commit(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Take in what the runner did; returns the sequences that gained a token or ended."""
        sequence_of_slot = self._running.of_slot
        advanced = match_result(plan, result, sequence_of_slot)
        for sequence, sampled in zip(advanced, result.sampled, strict=True):
            sequence.append(sampled)
        block_size = self._blocks.block_size
        for entry in plan.scheduled:
            sequence = sequence_of_slot[entry.slot]
            num_computed = entry.start + len(entry.token_ids) + entry.is_last_pending
            sequence.num_computed_tokens = num_computed
            is_block_full = num_computed // block_size > sequence.num_published_blocks
            # What led to invalid logits must be found by nobody.
            if is_block_full and sequence.finish_reason is not FinishReason.ERROR:
                self._blocks.publish(sequence)
            if not entry.is_last_pending:
                advanced += self._commit_chunk(sequence, entry)
        for chunk in result.prompt_logprobs:
            sequence_of_slot[chunk.slot].add_prompt_logprobs(chunk.logprobs)
        self.totals.num_generated_tokens += len(result.sampled)
        for sequence in advanced:
            if sequence.finish_reason is not None:
                self.totals.num_generated_tokens -= sequence.finish_reason is FinishReason.ERROR
                self._end(sequence)
        self.totals.num_padding_tokens += result.num_padding_tokens
        self._blocks.commit()
        self.limits.record_fit()
        return advanced

    def give_up(self, plan: StepPlan) -> Sequence | None:
        """``plan`` did not fit into memory, and how far it got is unknown: nothing of it counts,
        everybody waits again, later plans are smaller.

        Returns the sequence that does not even fit alone into the smallest step, if there is one.
        """
        alone = self._running.of_slot[plan.scheduled[0].slot]
        while self._running:
            self._preempt(self._running.last)
        self._running.clear()
        self._blocks.reset()
        return None if self.limits.shrink(plan) else alone

    def reset(self) -> None:
        """After a failure, from any state: drop all sequences, free every slot and block."""
        self._waiting.clear()
        self._running.clear()
        self._blocks.reset()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless slots, queues and blocks agree."""
        self._running.check_integrity()
        assert len(self._running) <= self.limits.max_seqs_of_memory, "more run than may"
        for sequences in (self._running, self._waiting):
            orders = [sequence.order for sequence in sequences]
            assert orders == sorted(set(orders)), "sequences stand out of order"
        for sequence in self._waiting:
            assert sequence.slot is None, "a waiting sequence holds a slot"
            assert not sequence.block_tables, "a waiting sequence holds blocks"
        for sequence in [*self._waiting, *self._running]:
            assert sequence.finish_reason is None, "a finished sequence is still here"
        self._blocks.check_integrity(self._running)

    def _prompt_budget(self) -> int:
        """Tokens that the step has for prompts beside the decodes of all that run."""
        running = self._running.sequences
        contexts = [s.num_computed_tokens for s in running if s.is_last_on_device]
        starts = [s.num_computed_tokens for s in running if not s.is_last_on_device]
        # Samples that wait for the prompt of their first one compute nothing.
        num_new = sum([s.num_expected_hit_tokens < s.num_tokens for s in self._waiting])
        return self.limits.prompt_tokens(
            StepWork(num_decodes=len(contexts), num_context_tokens=sum(contexts)),
            start=starts[0] if starts else 0,
            num_prompts=len(starts) + num_new,
        )

    def _make_way(self) -> None:
        """For the first that waits: lower classes that come after it leave, if that helps in this
        step already.
        """
        urgent = self._waiting.first
        running = self._running.sequences
        num_prompt_tokens = sum(
            [
                s.num_uncomputed_tokens - s.is_last_on_device
                for s in running
                if s.order < urgent.order
            ]
        )
        if num_prompt_tokens >= self._prompt_budget():
            return  # those before use the budget up
        victims = self._admission.find_victims(urgent)
        while victims and self._admission.find_start(urgent) is None:
            self._preempt(victims.pop())

    def _plan_decodes(self, draft: PlanDraft) -> list[Sequence]:
        """Returns those that run and are amid their prompts."""
        unfinished: list[Sequence] = []
        for sequence in self._running.sequences:  # only its end is taken away meanwhile
            if not sequence.is_last_on_device:
                unfinished.append(sequence)
                continue
            updates: tuple[TableUpdate, ...] = ()
            if sequence.num_computed_tokens >= sequence.num_writable_tokens:
                passed = self._blocks.drop_passed(sequence)
                end = sequence.num_computed_tokens + 1
                if not self._make_room(sequence, end):
                    break
                updates = (*passed, *self._blocks.extend(sequence, end, draft.block_copies))
            draft.add_decode(sequence, updates)
        return unfinished

    def _make_room(self, sequence: Sequence, end: int) -> bool:
        """Free the blocks that ``sequence`` needs; ``False`` when it came last and gave way."""
        blocks = self._blocks
        while (
            blocks.num_free_blocks < blocks.num_groups  # most that one token can need
            and blocks.num_free_blocks < blocks.num_missing_blocks(sequence, end)
        ):
            victim = self._running.last
            self._demand.record_preemption(victim)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _plan_prompts(
        self, draft: PlanDraft, unfinished: list[Sequence], budget_tokens: int
    ) -> None:
        """Those that run and those that wait, in order."""
        for sequence in unfinished:
            if sequence.slot is None:  # gave way meanwhile
                continue
            budget_tokens = self._plan_admissions(draft, budget_tokens, before=sequence)
            if budget_tokens > 0 and sequence.slot is not None:
                budget_tokens = self._plan_chunk(draft, sequence, budget_tokens)
        self._plan_admissions(draft, budget_tokens)

    def _plan_admissions(
        self, draft: PlanDraft, budget_tokens: int, before: Sequence | None = None
    ) -> int:
        """Admit all that fit, or only those that come before one that runs; returns the budget
        left.
        """
        while budget_tokens > 0 and self._waiting:
            sequence = self._waiting.first
            if before is not None and sequence.order > before.order:
                break
            hit = self._admission.find_start(sequence)
            if hit is None:
                break
            self._waiting.remove(sequence)
            self._enter(sequence, num_cached_tokens=hit.num_tokens)
            self._blocks.admit(sequence, hit)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = hit.num_tokens
                self.totals.num_prompt_tokens += sequence.num_tokens
                self.totals.num_cached_prompt_tokens += hit.num_tokens
            draft.admit(sequence)
            budget_tokens = self._plan_chunk(draft, sequence, budget_tokens)
            assert sequence.slot is not None, "admitted without room for a token"
        return budget_tokens

    def _plan_chunk(self, draft: PlanDraft, sequence: Sequence, budget_tokens: int) -> int:
        """Plan the next tokens of a prompt; returns the budget left: 0 while more of it is to come,
        or while samples wait that will end with it.
        """
        start, num_tokens = sequence.num_computed_tokens, sequence.num_tokens
        end = min(num_tokens, start + budget_tokens)
        updates: tuple[TableUpdate, ...] = ()
        if end > sequence.num_writable_tokens:
            passed = self._blocks.drop_passed(sequence)
            end = self._reachable_end(draft, sequence, end)
            if sequence.slot is None:
                return 0
            updates = (*passed, *self._blocks.extend(sequence, end, draft.block_copies))
        is_last = end == num_tokens
        sampling_slots = self._sampling_slots(draft, sequence) if is_last else ()
        draft.add_chunk(sequence, end, updates, sampling_slots)
        if not is_last:
            return 0
        if sequence.sampling.max_tokens == 0 and self._waiting.siblings_of(sequence):
            return 0
        return budget_tokens - (end - start)

    def _reachable_end(self, draft: PlanDraft, sequence: Sequence, end: int) -> int:
        """How far, at most to ``end``, there are blocks. Where there are none, because others took
        those behind its window, the last that this plan does not hold yet gives way: at last
        ``sequence`` itself.
        """
        planned: set[int | None] | None = None
        while True:
            reachable = self._blocks.reachable_end(sequence, end)
            if reachable > sequence.num_computed_tokens:
                return reachable
            if planned is None:
                planned = {entry.slot for entry in draft.scheduled}
                planned.update(admission.slot for admission in draft.admissions)
            victim = next(
                s for s in reversed(self.running) if s is sequence or s.slot not in planned
            )
            self._demand.record_preemption(victim)
            self._preempt(victim)
            if victim is sequence:
                return reachable

    def _sampling_slots(self, draft: PlanDraft, sequence: Sequence) -> tuple[int, ...]:
        """Who draws from the last token of a prompt: its siblings that find a place do, too."""
        if sequence.sampling.max_tokens == 0:
            return ()
        # Places that are left by those that go first.
        num_places = self._admission.num_free_places - self._waiting.num_before(sequence)
        siblings: list[Sequence] = []
        if num_places > 0:
            for sibling in self._waiting.siblings_of(sequence)[:num_places]:
                if not self._admission.can_fork(sibling):
                    break
                self._waiting.remove(sibling)
                sibling.cached_tokens = sequence.cached_tokens
                self._enter(sibling, num_cached_tokens=sequence.cached_tokens or 0)
                siblings.append(sibling)
        if siblings:
            self._blocks.fork(sequence, siblings)
        for sibling in siblings:
            draft.admit(sibling)
        return sum((sibling.own_slots for sibling in siblings), start=sequence.own_slots)

    def _commit_chunk(self, sequence: Sequence, entry: ScheduledSequence) -> list[Sequence]:
        """After a part of a prompt; returns who ended with it, without a token."""
        self._notes.add(sequence, "chunk", len(entry.token_ids))
        num_again = min(sequence.num_computed_tokens, sequence.num_once_computed_tokens)
        self.totals.num_recomputed_tokens += max(0, num_again - entry.start)
        for slot in entry.sampling_slots:
            sampling = self._running.of_slot[slot]
            if sampling is not sequence:
                sampling.num_computed_tokens = sequence.num_computed_tokens
                sampling.num_published_blocks = sequence.num_published_blocks
            if sampling.num_new_tokens == 1:
                self._notes.add(sampling, "first_token")
        if entry.sampling_slots or sequence.num_uncomputed_tokens > 0:
            return []
        siblings = self._waiting.siblings_of(sequence)
        for sibling in siblings:
            self._waiting.remove(sibling)
        for sibling in [sequence, *siblings]:
            sibling.finish_reason = FinishReason.LENGTH
            sibling.cached_tokens = sequence.cached_tokens
        return [sequence, *siblings]

    def _seal(self, draft: PlanDraft) -> StepPlan:
        self._num_steps += 1
        return draft.seal(
            self._num_steps,
            released_slots=self._running.take_released_slots(),
            freed_block_ids=self._blocks.take_freed_block_ids(),
        )

    def _preempt(self, sequence: Sequence) -> None:
        self.totals.num_preemptions += 1
        self._notes.add(sequence, "preempted", sequence.num_held_blocks)
        sequence.num_once_computed_tokens = max(
            sequence.num_once_computed_tokens, sequence.num_computed_tokens
        )
        self._leave(sequence)
        sequence.num_expected_hit_tokens = self._blocks.find_prefix(sequence).num_tokens
        self._waiting.add([sequence])

    def _enter(self, sequence: Sequence, *, num_cached_tokens: int) -> None:
        self._running.enter(sequence)
        if sequence.admitted_s is None:
            sequence.admitted_s = self._notes.now_s
        self._notes.add(sequence, "admitted", num_cached_tokens)

    def _end(self, sequence: Sequence) -> None:
        """Its last delta is due."""
        self._notes.add(sequence, "last_token", sequence.num_generated_tokens)
        self._demand.record_end(sequence)
        if sequence.slot is not None:
            num_blocks = sequence.num_held_blocks
            self._leave(sequence)
            self._notes.add(sequence, "blocks_freed", num_blocks)

    def _leave(self, sequence: Sequence) -> None:
        self._running.leave(sequence)
        if sequence.needs_prompt_logprobs:
            sequence.prompt_logprobs.clear()  # those of the whole prompt come again
        self._blocks.release(sequence)
