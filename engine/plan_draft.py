"""A step's plan in the making: what the scheduler decided, in the words of ``engine.step``."""

from dataclasses import dataclass, field

from engine.sequence import Sequence
from engine.step import (
    Admission,
    BlockCopy,
    BlockTransfer,
    ScheduledSequence,
    StepPlan,
    TableUpdate,
)


@dataclass(slots=True)
class PlanDraft:
    """Lists that only grow, until ``seal``."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    loads: list[BlockTransfer] = field(default_factory=list)
    comparisons: list[BlockTransfer] = field(default_factory=list)
    num_loads_left: int = 0
    """That the step has room for."""

    def admit(self, sequence: Sequence) -> None:
        """``sequence`` entered its slot, with the blocks that it has now."""
        assert sequence.slot is not None
        sequence.is_admitted = True
        self.admissions.append(
            Admission(
                slot=sequence.slot,
                sampling=sequence.sampling,
                block_tables=tuple(tuple(table) for table in sequence.block_tables),
                num_prompt_tokens=sequence.num_prompt_tokens,
                past_token_ids=sequence.past_token_ids,
            )
        )

    def add_decode(self, sequence: Sequence, updates: tuple[TableUpdate, ...]) -> None:
        """One token of ``sequence``, the last one that it sampled."""
        slots = sequence.own_slots
        start = sequence.num_computed_tokens
        # By position, which is faster: made for every sequence in every step.
        self.scheduled.append(ScheduledSequence(slots[0], start, (), True, updates, slots))

    def add_chunk(
        self,
        sequence: Sequence,
        end: int,
        updates: tuple[TableUpdate, ...],
        sampling_slots: tuple[int, ...],
    ) -> None:
        """The known tokens of ``sequence`` up to position ``end``."""
        assert sequence.slot is not None
        start = sequence.num_computed_tokens
        following_token_id = None
        if sequence.needs_prompt_logprobs and end < sequence.num_prompt_tokens:
            following_token_id = sequence.prompt_ids[end]
        self.scheduled.append(
            ScheduledSequence(
                slot=sequence.slot,
                start=start,
                token_ids=sequence.slice(start, end),
                is_last_pending=False,
                table_updates=updates,
                sampling_slots=sampling_slots,
                following_token_id=following_token_id,
            )
        )

    def seal(
        self,
        step_id: int,
        *,
        released_slots: tuple[int, ...],
        freed_block_ids: tuple[int, ...],
        stores: tuple[BlockTransfer, ...] = (),
    ) -> StepPlan:
        return StepPlan(
            step_id=step_id,
            released_slots=released_slots,
            freed_block_ids=freed_block_ids,
            block_copies=tuple(self.block_copies),
            admissions=tuple(self.admissions),
            scheduled=tuple(self.scheduled),
            stores=stores,
            loads=tuple(self.loads),
            comparisons=tuple(self.comparisons),
        )
