"""Decides what every step computes: one token budget, decodes first, prefill chunks with the rest.

Everybody has a fixed place in one order: arrival, put off by class. The running and the waiting
each stand in it; a waiting one may come before running ones when it came late with an early place
or found no room. A sequence is admitted, always the first that waits, once its whole uncached
prompt fits the KV pool and the answers of all are expected to; the budget for prompts goes to
running and waiting ones in order, so that a long prompt pauses for a more urgent one. The samples
of one request stand one after the other; when the first has computed the prompt, the others are
forked from it: they share its blocks and draw their first token from the same row. Blocks that the
node's cache has brought are loaded first; a sequence computes when all of them are there.

Who gives way computes again later, with what the prefix cache has kept. When decodes run out of
blocks that is the last in the order. When the first that waits finds no place, it is those of a
lower class that come after it: these can never take it back. Call order: ``plan``, execution
elsewhere, ``commit`` or ``give_up``; ``add`` and ``finish`` between steps. Pure bookkeeping: must
not know clocks, tensors or transport.
"""

from engine.admission_control import AdmissionControl
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.kv_demand import KvDemand, create_kv_demand
from engine.messages import FinishReason
from engine.notes import Notes
from engine.observations import LimitReason
from engine.places import Places
from engine.plan_draft import PlanDraft
from engine.prompt_planner import PromptPlanner
from engine.restore_planner import RestorePlanner
from engine.result_match import match_result
from engine.sequence import Sequence
from engine.step import BlockTransfer, ScheduledSequence, StepPlan, StepResult, TableUpdate
from engine.step_limits import StepLimits
from engine.step_time import StepWork
from engine.store_planner import StorePlanner
from engine.tier_desk import TierDesk


class Scheduler:
    """Owner of all sequences and slots of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        notes: Notes | None = None,
        limits: StepLimits | None = None,
        demand: KvDemand | None = None,
        tiers: TierDesk | None = None,
    ) -> None:
        self._blocks = blocks
        self._notes = notes or Notes()
        self._places = Places(config.max_num_seqs, blocks, self._notes)
        self._waiting = self._places.waiting
        self._running = self._places.running
        self.totals = self._places.totals
        self._num_added = 0
        self._num_steps = 0
        self.limits = limits or StepLimits(config)
        self._demand = demand or create_kv_demand(config.kv_admission, blocks)
        self._admission = AdmissionControl(blocks, self._running, self.limits, self._demand)
        self._tiers = tiers
        self._restores: RestorePlanner | None = None
        self._stores: StorePlanner | None = None
        if tiers is not None:
            self._restores = RestorePlanner(blocks, self.totals, tiers, self._notes)
            self._stores = StorePlanner(blocks, self._running, self.limits, tiers)
        self._prompts = PromptPlanner(
            self._places, blocks, self._admission, self._demand, self._restores
        )

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
    def is_out_of_blocks(self) -> bool:
        """Whether the first that waits stays there until blocks become free."""
        return bool(self._waiting and self._running) and self._admission.lacks_blocks(
            self._waiting.first
        )

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that running sequences have KV of; shared ones count for each."""
        return sum([s.num_computed_tokens for s in self._running.sequences])

    @property
    def has_work(self) -> bool:
        """Whether ``plan`` has something to do."""
        is_store_due = self._stores is not None and self._stores.is_due
        return is_store_due or bool(self._running or self._waiting)

    def line_up(self, samples: list[Sequence]) -> None:
        """Give all samples of a request their place in the order, once; ``add`` does so if it was
        not done before.
        """
        self._num_added += 1
        for sequence in samples:
            sequence.order = (sequence.due_s, self._num_added, sequence.index)

    def add(self, samples: list[Sequence]) -> None:
        """Queue the samples of a request; each fits the pool by itself."""
        first, *others = samples
        if first.order[1] == 0:
            self.line_up(samples)
        first.num_expected_hit_tokens = self._blocks.find_prefix(first).num_tokens
        for sequence in others:
            sequence.num_expected_hit_tokens = sequence.num_tokens  # the first computes it for all
        self._waiting.add(samples)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out between steps, whatever it was doing."""
        if sequence.slot is None:
            self._waiting.remove(sequence)
        self._end(sequence)

    def plan(self) -> StepPlan | None:
        """The next step, or ``None`` when there is nothing to do."""
        if not self.has_work:
            return None
        if self._waiting:
            self._make_way()
        draft = PlanDraft()
        if self._stores is not None:
            draft.num_loads_left = self._stores.num_transfers()
        unfinished = self._plan_decodes(draft)
        if unfinished or self._waiting:
            self._prompts.plan(draft, unfinished, self._prompt_budget())
        stores = () if self._stores is None else self._stores.take(draft)
        if not (draft.scheduled or draft.loads):
            is_empty = not self._running and not self._waiting
            assert is_empty, "sequences are here, but none of them can advance"
            if not stores:
                return None
        return self._seal(draft, stores)

    def commit(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Take in what the runner did; returns the sequences that gained a token or ended."""
        sequence_of_slot = self._running.of_slot
        advanced = match_result(plan, result, sequence_of_slot)
        if self._restores is not None and (plan.loads or plan.comparisons):
            for sequence in self._restores.commit(plan, result):
                self._reach_breakpoints(sequence)
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
            if sequence.request.breakpoints:
                self._reach_breakpoints(sequence)
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
        if self._stores is not None:
            self._stores.commit(plan, result)
        if plan.scheduled:
            self.limits.record_fit()
        return advanced

    def give_up(self, plan: StepPlan) -> Sequence | None:
        """``plan`` did not fit into memory, and how far it got is unknown: nothing of it counts,
        everybody waits again, later plans are smaller.

        Returns the sequence that does not even fit alone into the smallest step, if there is one.
        """
        alone = self._running.of_slot[plan.scheduled[0].slot] if plan.scheduled else None
        self._abandon()
        while self._running:
            self._places.preempt(self._running.last)
        self._places.clear_running()
        return None if not plan.scheduled or self.limits.shrink(plan) else alone

    def reset(self) -> None:
        """After a failure, from any state: drop all sequences, free every slot and block."""
        self._abandon()
        self._places.clear()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless slots, queues and blocks agree."""
        self._places.check_integrity()
        assert len(self._running) <= self.limits.max_seqs_of_memory, "more run than may"

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
            self._places.preempt(victims.pop())

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
            self._places.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _commit_chunk(self, sequence: Sequence, entry: ScheduledSequence) -> list[Sequence]:
        """After a part of a prompt; returns who ended with it, without a token."""
        self._notes.add(sequence, "chunk", len(entry.token_ids))
        num_again = min(sequence.num_computed_tokens, sequence.num_once_computed_tokens)
        self.totals.num_recomputed_tokens += max(0, num_again - entry.start)
        for slot in entry.sampling_slots:
            sampling = self._running.of_slot[slot]
            if sampling is not sequence:
                sampling.share_prompt_counts(sequence)
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
            sibling.share_prompt_counts(sequence)
        return [sequence, *siblings]

    def _reach_breakpoints(self, sequence: Sequence) -> None:
        if self._tiers is not None and sequence.finish_reason is not FinishReason.ERROR:
            self._tiers.reach_breakpoints(sequence, self._notes.now_s)

    def _abandon(self) -> None:
        """The plan under way moved nothing."""
        if self._tiers is not None and self._restores is not None:
            self._tiers.abandon()
            self._restores.abandon()

    def _seal(self, draft: PlanDraft, stores: tuple[BlockTransfer, ...]) -> StepPlan:
        self._num_steps += 1
        return draft.seal(
            self._num_steps,
            released_slots=self._running.take_released_slots(),
            freed_block_ids=self._blocks.take_freed_block_ids(),
            stores=stores,
        )

    def _end(self, sequence: Sequence) -> None:
        if self._tiers is not None:
            self._tiers.end(sequence)
        self._demand.record_end(sequence)
        self._places.end(sequence)
