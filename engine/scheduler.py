"""Decides what every step computes: one token budget, decodes first, prefill chunks with the rest.

Sequences are admitted first come, first served, once their whole uncached prompt fits the KV pool.
When decodes run out of blocks, the sequence that arrived last gives its blocks up and is computed
again later. Call order: ``plan``, execution elsewhere, ``commit``; ``add`` and ``finish`` between
steps. Pure bookkeeping: must not know clocks, tensors or transport.
"""

from collections import deque
from dataclasses import dataclass, field

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.errors import RunnerError
from engine.sequence import Sequence
from engine.step import Admission, BlockCopy, ScheduledSequence, StepPlan, StepResult


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)


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
        waiting = sum(len(s.token_ids) - s.num_expected_hit_tokens for s in self._waiting)
        running = sum(s.num_uncomputed_tokens - s.is_last_on_device for s in self._running)
        return waiting + running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that fits the pool by itself."""
        sequence.num_expected_hit_tokens = self._blocks.find_prefix(sequence).num_tokens
        self._waiting.append(sequence)

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
        draft = _Draft()
        self._plan_decodes(draft)
        budget_tokens = max(self._budget_tokens - len(draft.scheduled), self._min_prefill_tokens)
        budget_tokens -= self._plan_running_prefill(draft, budget_tokens)
        self._plan_admissions(draft, budget_tokens)
        assert draft.scheduled, "sequences are here, but none of them can advance"
        return self._seal(draft)

    def commit(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Take in what the runner did; returns the sequences that gained a token."""
        sampling = [entry.slot for entry in plan.scheduled if entry.is_sampling]
        if plan.step_id != result.step_id or sampling != [s.slot for s in result.sampled]:
            raise RunnerError(
                f"step {plan.step_id} samples slots {sampling}, but the runner answered {result}; "
                "it must return one token for each, in order"
            )
        for entry in plan.scheduled:
            sequence = self._sequence_of_slot[entry.slot]
            sequence.num_computed_tokens = entry.start + entry.num_tokens
            self._blocks.publish(sequence)
        advanced = []
        for sampled in result.sampled:
            sequence = self._sequence_of_slot[sampled.slot]
            sequence.append(sampled.token_id)
            advanced.append(sequence)
        for sequence in advanced:
            if sequence.finish_reason is not None:
                self._leave(sequence)
        self.totals.num_generated_tokens += len(advanced)
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
            assert not sequence.block_ids, "a waiting sequence holds blocks"
        for sequence in [*self._waiting, *self._running]:
            assert sequence.finish_reason is None, "a finished sequence is still here"
        self._blocks.check_integrity(self._running)

    def _plan_decodes(self, draft: _Draft) -> None:
        index = 0
        while index < len(self._running):
            sequence = self._running[index]
            if sequence.is_last_on_device:
                if not self._make_room(sequence):
                    return
                draft.scheduled.append(self._decode(sequence))
            index += 1

    def _make_room(self, sequence: Sequence) -> bool:
        """Free a block if ``sequence`` needs one; ``False`` when it arrived last and gave way."""
        while self._blocks.needs_block(sequence) and self._blocks.num_free_blocks == 0:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _decode(self, sequence: Sequence) -> ScheduledSequence:
        needs_block = self._blocks.needs_block(sequence)
        assert sequence.slot is not None
        return ScheduledSequence(
            slot=sequence.slot,
            start=sequence.num_computed_tokens,
            token_ids=(),
            is_last_pending=True,
            new_block_ids=(self._blocks.grow(sequence),) if needs_block else (),
            is_sampling=True,
        )

    def _plan_running_prefill(self, draft: _Draft, budget_tokens: int) -> int:
        # Only the last one can be amid its prefill: nobody is admitted before it had all it needs.
        if not self._running or self._running[-1].is_last_on_device:
            return 0
        return self._plan_chunk(draft, self._running[-1], budget_tokens)

    def _plan_admissions(self, draft: _Draft, budget_tokens: int) -> None:
        while budget_tokens > 0 and self._waiting and self._free_slots:
            sequence = self._waiting[0]
            hit = self._blocks.find_prefix(sequence)
            # A block each for all that run, so that nobody is preempted within a block's length.
            num_reserved = len(self._running) + 1 if self._running else 0
            if not self._blocks.can_admit(sequence, hit, num_reserved):
                break
            self._waiting.popleft()
            self._running.append(sequence)
            sequence.slot = self._free_slots.pop()
            self._sequence_of_slot[sequence.slot] = sequence
            copy = self._blocks.admit(sequence, hit)
            if copy is not None:
                draft.block_copies.append(copy)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = hit.num_tokens
                self.totals.num_prompt_tokens += len(sequence.token_ids)
                self.totals.num_cached_prompt_tokens += hit.num_tokens
            draft.admissions.append(
                Admission(sequence.slot, sequence.request.sampling, tuple(sequence.block_ids))
            )
            budget_tokens -= self._plan_chunk(draft, sequence, budget_tokens)

    def _plan_chunk(self, draft: _Draft, sequence: Sequence, budget_tokens: int) -> int:
        assert sequence.slot is not None
        start = sequence.num_computed_tokens
        num_tokens = min(sequence.num_uncomputed_tokens, budget_tokens)
        draft.scheduled.append(
            ScheduledSequence(
                slot=sequence.slot,
                start=start,
                token_ids=tuple(sequence.token_ids[start : start + num_tokens]),
                is_last_pending=False,
                new_block_ids=(),
                is_sampling=start + num_tokens == len(sequence.token_ids),
            )
        )
        return num_tokens

    def _seal(self, draft: _Draft) -> StepPlan:
        self._num_steps += 1
        released_slots = tuple(self._released_slots)
        self._released_slots.clear()
        return StepPlan(
            step_id=self._num_steps,
            released_slots=released_slots,
            freed_block_ids=self._blocks.take_freed_block_ids(),
            block_copies=tuple(draft.block_copies),
            admissions=tuple(draft.admissions),
            scheduled=tuple(draft.scheduled),
        )

    def _preempt(self, sequence: Sequence) -> None:
        self.totals.num_preemptions += 1
        self._leave(sequence)
        sequence.num_expected_hit_tokens = self._blocks.find_prefix(sequence).num_tokens
        self._waiting.appendleft(sequence)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self._running.remove(sequence)
        del self._sequence_of_slot[sequence.slot]
        self._free_slots.append(sequence.slot)
        self._released_slots.append(sequence.slot)
        sequence.slot = None
        sequence.is_last_on_device = False
        self._blocks.release(sequence)
