"""Decides what every step computes: one token budget, decodes first, prefill chunks with the rest.

Sequences are admitted first come, first served, once their whole uncached prompt fits the KV pool.
The samples of one request stand one after the other; when the first has computed the prompt, the
others are forked from it: they share its blocks and draw their first token from the same row. When
decodes run out of blocks, the sequence that arrived last gives its blocks up and is computed again
later. Call order: ``plan``, execution elsewhere, ``commit``; ``add`` and ``finish`` between steps.
Pure bookkeeping: must not know clocks, tensors or transport.
"""

from collections import deque
from dataclasses import dataclass

from engine.block_manager import BlockManager, PrefixHit
from engine.config import EngineConfig
from engine.messages import FinishReason
from engine.plan_draft import PlanDraft
from engine.result_match import match_result
from engine.sequence import Sequence
from engine.step import ScheduledSequence, StepPlan, StepResult, TableUpdate


@dataclass(slots=True)
class SchedulerTotals:
    """Counts since start."""

    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    """Of admitted requests; a preempted one counts once."""
    num_cached_prompt_tokens: int = 0
    num_generated_tokens: int = 0


class Scheduler:
    """Owner of all sequences and slots of one engine."""

    def __init__(self, config: EngineConfig, blocks: BlockManager) -> None:
        self._max_num_seqs = config.max_num_seqs
        self._budget_tokens = config.max_num_batched_tokens
        self._min_prefill_tokens = config.min_prefill_chunk_tokens
        self._blocks = blocks
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        """In order of arrival, all of them before everything in ``_waiting``."""
        self._sequence_of_slot: dict[int, Sequence] = {}
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._released_slots: list[int] = []
        self._num_steps = 0
        self.totals = SchedulerTotals()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_pending_prefill_tokens(self) -> int:
        """Tokens of admitted and waiting sequences whose KV must be computed before they decode."""
        waiting = sum(s.num_tokens - s.num_expected_hit_tokens for s in self._waiting)
        running = sum(s.num_uncomputed_tokens - s.is_last_on_device for s in self._running)
        return waiting + running

    def add(self, samples: list[Sequence]) -> None:
        """Queue all samples of a request; each fits the pool by itself."""
        first, *others = samples
        first.num_expected_hit_tokens = self._blocks.find_prefix(first).num_tokens
        for sequence in others:
            sequence.num_expected_hit_tokens = sequence.num_tokens  # the first computes it for all
        self._waiting.extend(samples)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out between steps, whatever it was doing."""
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)

    def plan(self) -> StepPlan | None:
        """The next step, or ``None`` when no sequence is here."""
        if not self._running and not self._waiting:
            return None
        draft = PlanDraft()
        self._plan_decodes(draft)
        budget_tokens = max(self._budget_tokens - len(draft.scheduled), self._min_prefill_tokens)
        budget_tokens = self._plan_running_prefill(draft, budget_tokens)
        self._plan_admissions(draft, budget_tokens)
        assert draft.scheduled, "sequences are here, but none of them can advance"
        return self._seal(draft)

    def commit(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Take in what the runner did; returns the sequences that gained a token or ended."""
        advanced = match_result(plan, result, self._sequence_of_slot)
        for sequence, sampled in zip(advanced, result.sampled, strict=True):
            sequence.append(sampled)
        block_size = self._blocks.block_size
        for entry in plan.scheduled:
            sequence = self._sequence_of_slot[entry.slot]
            num_computed = entry.start + len(entry.token_ids) + entry.is_last_pending
            sequence.num_computed_tokens = num_computed
            is_block_full = num_computed // block_size > sequence.num_published_blocks
            # What led to invalid logits must be found by nobody.
            if is_block_full and sequence.finish_reason is not FinishReason.ERROR:
                self._blocks.publish(sequence)
            if len(entry.sampling_slots) != 1:
                advanced += self._commit_prompt(sequence, entry)
        for chunk in result.prompt_logprobs:
            self._sequence_of_slot[chunk.slot].add_prompt_logprobs(chunk.logprobs)
        self.totals.num_generated_tokens += len(result.sampled)
        for sequence in advanced:
            if sequence.finish_reason is not None:
                self.totals.num_generated_tokens -= sequence.finish_reason is FinishReason.ERROR
                if sequence.slot is not None:
                    self._leave(sequence)
        self._blocks.commit()
        return advanced

    def reset(self) -> None:
        """After a failure, from any state: drop all sequences, free every slot and block."""
        self._waiting.clear()
        self._running.clear()
        self._sequence_of_slot.clear()
        # The runner may or may not have carried out the failed plan, so it forgets every slot.
        self._free_slots = list(range(self._max_num_seqs - 1, -1, -1))
        self._released_slots = list(range(self._max_num_seqs))
        self._blocks.reset()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless slots, queues and blocks agree."""
        slots = {sequence.slot: sequence for sequence in self._running}
        assert slots == self._sequence_of_slot, "slots and running sequences differ"
        assert sorted([*self._sequence_of_slot, *self._free_slots]) == list(
            range(self._max_num_seqs)
        ), "a slot was lost or is used twice"
        assert all(s.is_last_on_device for s in self._running[:-1]), "two prefills at once"
        for sequence in self._waiting:
            assert sequence.slot is None, "a waiting sequence holds a slot"
            assert not sequence.block_tables, "a waiting sequence holds blocks"
        for sequence in [*self._waiting, *self._running]:
            assert sequence.finish_reason is None, "a finished sequence is still here"
        self._blocks.check_integrity(self._running)

    def _plan_decodes(self, draft: PlanDraft) -> None:
        for sequence in self._running:  # only its end is taken away meanwhile
            if not sequence.is_last_on_device:
                continue
            updates: tuple[TableUpdate, ...] = ()
            if sequence.num_computed_tokens >= sequence.num_writable_tokens:
                passed = self._blocks.drop_passed(sequence)
                end = sequence.num_computed_tokens + 1
                if not self._make_room(sequence, end):
                    return
                updates = (*passed, *self._blocks.extend(sequence, end, draft.block_copies))
            draft.add_decode(sequence, updates)

    def _make_room(self, sequence: Sequence, end: int) -> bool:
        """Free the blocks that ``sequence`` needs; ``False`` when it arrived last and gave way."""
        blocks = self._blocks
        while (
            blocks.num_free_blocks < blocks.num_groups  # most that one token can need
            and blocks.num_free_blocks < blocks.num_missing_blocks(sequence, end)
        ):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _plan_running_prefill(self, draft: PlanDraft, budget_tokens: int) -> int:
        # Only the last one can be amid its prefill: nobody is admitted before it had all it needs.
        if not self._running or self._running[-1].is_last_on_device:
            return budget_tokens
        return self._plan_chunk(draft, self._running[-1], budget_tokens)

    def _plan_admissions(self, draft: PlanDraft, budget_tokens: int) -> None:
        while budget_tokens > 0 and self._waiting and self._free_slots:
            sequence = self._waiting[0]
            hit = self._find_admissible(sequence)
            if hit is None:
                break
            self._waiting.popleft()
            self._enter(sequence)
            self._blocks.admit(sequence, hit)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = hit.num_tokens
                self.totals.num_prompt_tokens += sequence.num_tokens
                self.totals.num_cached_prompt_tokens += hit.num_tokens
            draft.admit(sequence)
            budget_tokens = self._plan_chunk(draft, sequence, budget_tokens)
            assert sequence.slot is not None, "admitted without room for a token"

    def _find_admissible(self, sequence: Sequence) -> PrefixHit | None:
        """What ``sequence`` starts with, or ``None`` if it does not fit now."""
        hit = self._blocks.find_prefix(sequence)
        if not self._running:
            # It fits by itself, if need be in small chunks and computed from the start.
            fits = self._blocks.can_admit(sequence, hit, chunk_tokens=1, num_reserved_blocks=0)
            return hit if fits else self._blocks.no_hit
        fits = self._blocks.can_admit(
            sequence,
            hit,
            chunk_tokens=self._budget_tokens,
            num_reserved_blocks=self._num_reserved_blocks,
        )
        return hit if fits else None

    @property
    def _num_reserved_blocks(self) -> int:
        # One per group for all that run and one more sequence, so that nobody is preempted within
        # a block's length.
        return (len(self._running) + 1) * self._blocks.num_groups

    def _plan_chunk(self, draft: PlanDraft, sequence: Sequence, budget_tokens: int) -> int:
        """Plan the next tokens of a prompt; returns the budget left: 0 while more of it is to come,
        or while samples wait that will end with it.
        """
        start, num_tokens = sequence.num_computed_tokens, sequence.num_tokens
        end = min(num_tokens, start + budget_tokens)
        updates: tuple[TableUpdate, ...] = ()
        if end > sequence.num_writable_tokens:
            passed = self._blocks.drop_passed(sequence)
            end = self._blocks.reachable_end(sequence, end)
            if end == start:  # decodes took the blocks behind its window
                self._preempt(sequence)
                return 0
            updates = (*passed, *self._blocks.extend(sequence, end, draft.block_copies))
        is_last = end == num_tokens
        sampling_slots = self._sampling_slots(draft, sequence) if is_last else ()
        draft.add_chunk(sequence, end, updates, sampling_slots)
        if not is_last or (sequence.sampling.max_tokens == 0 and self._is_next_sibling(sequence)):
            return 0
        return budget_tokens - (end - start)

    def _sampling_slots(self, draft: PlanDraft, sequence: Sequence) -> tuple[int, ...]:
        """Who draws from the last token of a prompt: its siblings that find a place do, too."""
        if sequence.sampling.max_tokens == 0:
            return ()
        siblings: list[Sequence] = []
        while (
            self._free_slots
            and self._is_next_sibling(sequence)
            and self._blocks.num_free_blocks >= self._num_reserved_blocks
        ):
            sibling = self._waiting.popleft()
            self._enter(sibling)
            sibling.cached_tokens = sequence.cached_tokens
            siblings.append(sibling)
        if siblings:
            self._blocks.fork(sequence, siblings)
        for sibling in siblings:
            draft.admit(sibling)
        return sum((sibling.own_slots for sibling in siblings), start=sequence.own_slots)

    def _is_next_sibling(self, sequence: Sequence) -> bool:
        return bool(self._waiting) and self._waiting[0].is_sibling(sequence)

    def _commit_prompt(self, sequence: Sequence, entry: ScheduledSequence) -> list[Sequence]:
        """After a chunk that gave no token or several; returns who ended without one."""
        for slot in entry.sampling_slots[1:]:
            sibling = self._sequence_of_slot[slot]
            sibling.num_computed_tokens = sequence.num_computed_tokens
            sibling.num_published_blocks = sequence.num_published_blocks
        if entry.sampling_slots or sequence.num_uncomputed_tokens > 0:
            return []
        ended = [sequence]
        while self._is_next_sibling(sequence):
            ended.append(self._waiting.popleft())
        for sibling in ended:
            sibling.finish_reason = FinishReason.LENGTH
            sibling.cached_tokens = sequence.cached_tokens
        return ended

    def _seal(self, draft: PlanDraft) -> StepPlan:
        self._num_steps += 1
        released_slots = tuple(self._released_slots)
        self._released_slots.clear()
        return draft.seal(
            self._num_steps,
            released_slots=released_slots,
            freed_block_ids=self._blocks.take_freed_block_ids(),
        )

    def _preempt(self, sequence: Sequence) -> None:
        self.totals.num_preemptions += 1
        self._leave(sequence)
        sequence.num_expected_hit_tokens = self._blocks.find_prefix(sequence).num_tokens
        self._waiting.appendleft(sequence)

    def _enter(self, sequence: Sequence) -> None:
        slot = self._free_slots.pop()
        sequence.slot = slot
        sequence.own_slots = (slot,)
        self._sequence_of_slot[slot] = sequence
        self._running.append(sequence)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self._running.remove(sequence)
        del self._sequence_of_slot[sequence.slot]
        self._free_slots.append(sequence.slot)
        self._released_slots.append(sequence.slot)
        sequence.slot = None
        sequence.is_last_on_device = False
        if sequence.needs_prompt_logprobs:
            sequence.prompt_logprobs.clear()  # those of the whole prompt come again
        self._blocks.release(sequence)
