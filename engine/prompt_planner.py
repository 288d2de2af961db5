"""Plans the prompts of a step: chunks of those that run, and whoever may start, in order.

What it admits, or sends away for want of blocks, changes its place at once. Must not know how large
the budget is, or what became of the plan.
"""

from engine.admission_control import AdmissionControl
from engine.block_manager import BlockManager
from engine.kv_demand import KvDemand
from engine.places import Places
from engine.plan_draft import PlanDraft
from engine.restore_planner import RestorePlanner
from engine.sequence import Sequence
from engine.step import TableUpdate


class PromptPlanner:
    """Keeps nothing of its own; after the decodes of the same step are planned."""

    def __init__(
        self,
        places: Places,
        blocks: BlockManager,
        admission: AdmissionControl,
        demand: KvDemand,
        restores: RestorePlanner | None = None,
    ) -> None:
        """``restores``: where there are tiers."""
        self._places = places
        self._blocks = blocks
        self._admission = admission
        self._demand = demand
        self._restores = restores

    def plan(self, draft: PlanDraft, unfinished: list[Sequence], budget_tokens: int) -> None:
        """Add to ``draft`` what fits of those that run, ``unfinished``, and those that wait."""
        for sequence in unfinished:
            if sequence.slot is None:  # gave way meanwhile
                continue
            budget_tokens = self._plan_admissions(draft, budget_tokens, before=sequence)
            if sequence.slot is not None:
                budget_tokens = self._advance(draft, sequence, budget_tokens)
        self._plan_admissions(draft, budget_tokens)

    def _plan_admissions(
        self, draft: PlanDraft, budget_tokens: int, before: Sequence | None = None
    ) -> int:
        """Admit all that fit, or only those that come before one that runs; returns the budget
        left.
        """
        while budget_tokens > 0 and self._places.waiting:
            sequence = self._places.waiting.first
            if before is not None and sequence.order > before.order:
                break
            hit = self._admission.find_start(sequence)
            if hit is None:
                break
            self._places.enter(sequence, num_cached_tokens=hit.num_tokens)
            self._blocks.admit(sequence, hit)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = hit.num_held_tokens
                self._places.totals.num_prompt_tokens += sequence.num_tokens
                self._places.totals.num_cached_prompt_tokens += hit.num_held_tokens
            if self._restores is not None:
                self._restores.begin(sequence, hit)
            budget_tokens = self._advance(draft, sequence, budget_tokens)
            assert sequence.slot is not None, "admitted without room for a token"
        return budget_tokens

    def _advance(self, draft: PlanDraft, sequence: Sequence, budget_tokens: int) -> int:
        """Plan the next images of a prompt or, once they are there, tokens; returns the budget
        left.
        """
        if self._restores is not None and self._restores.plan_loads(draft, sequence):
            return budget_tokens
        if budget_tokens <= 0:
            return budget_tokens
        if not sequence.is_admitted:
            draft.admit(sequence)
        return self._plan_chunk(draft, sequence, budget_tokens)

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
        if self._restores is not None:
            self._restores.plan_check(draft, sequence, end)
        if not is_last:
            return 0
        if sequence.sampling.max_tokens == 0 and self._places.waiting.siblings_of(sequence):
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
                s
                for s in reversed(self._places.running.sequences)
                if s is sequence or s.slot not in planned
            )
            self._demand.record_preemption(victim)
            self._places.preempt(victim)
            if victim is sequence:
                return reachable

    def _sampling_slots(self, draft: PlanDraft, sequence: Sequence) -> tuple[int, ...]:
        """Who draws from the last token of a prompt: its siblings that find a place do, too."""
        if sequence.sampling.max_tokens == 0:
            return ()
        # Places that are left by those that go first.
        num_places = self._admission.num_free_places - self._places.waiting.num_before(sequence)
        siblings: list[Sequence] = []
        if num_places > 0:
            for sibling in self._places.waiting.siblings_of(sequence)[:num_places]:
                if not self._admission.can_fork(sibling):
                    break
                sibling.share_prompt_counts(sequence)
                self._places.enter(sibling, num_cached_tokens=sequence.cached_tokens or 0)
                siblings.append(sibling)
        if siblings:
            self._blocks.fork(sequence, siblings)
        for sibling in siblings:
            draft.admit(sibling)
        return sum((sibling.own_slots for sibling in siblings), start=sequence.own_slots)
