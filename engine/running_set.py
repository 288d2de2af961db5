"""Sequences that run, in their order, and the slots that name them to the runner.

Must not know why somebody comes or goes.
"""

from bisect import insort
from collections.abc import Iterator

from engine.sequence import Sequence
from engine.waiting_queue import BY_ORDER


class RunningSet:
    """Owner of slots ``0 .. num_slots - 1``."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self.sequences: list[Sequence] = []
        """To look at; always the same list."""
        self.of_slot: dict[int, Sequence] = {}
        """To look at."""
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._released_slots: list[int] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    @property
    def last(self) -> Sequence:
        """Precondition: somebody runs."""
        return self.sequences[-1]

    def enter(self, sequence: Sequence) -> None:
        slot = self._free_slots.pop()
        sequence.slot = slot
        sequence.own_slots = (slot,)
        self.of_slot[slot] = sequence
        insort(self.sequences, sequence, key=BY_ORDER)

    def leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.sequences.remove(sequence)
        del self.of_slot[sequence.slot]
        self._free_slots.append(sequence.slot)
        self._released_slots.append(sequence.slot)
        sequence.slot = None
        sequence.is_admitted = False
        sequence.is_last_on_device = False

    def take_released_slots(self) -> tuple[int, ...]:
        """Since the last call; what the runner is yet to be told."""
        released = tuple(self._released_slots)
        self._released_slots.clear()
        return released

    def clear(self) -> None:
        """From any state. The runner may or may not have carried out the last plan, so it forgets
        every slot.
        """
        self.sequences.clear()
        self.of_slot.clear()
        self._free_slots = list(range(self._num_slots - 1, -1, -1))
        self._released_slots = list(range(self._num_slots))

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless every slot is free or names one that runs."""
        slots = {sequence.slot: sequence for sequence in self.sequences}
        assert slots == self.of_slot, "slots and running sequences differ"
        assert sorted([*self.of_slot, *self._free_slots]) == list(range(self._num_slots)), (
            "a slot was lost or is used twice"
        )
