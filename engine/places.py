"""Where every sequence stands: who waits, who runs, and what changes when one goes from here to
there.

Must not know why, or what a step holds.
"""

from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.notes import Notes
from engine.running_set import RunningSet
from engine.sequence import Sequence
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


class Places:
    """Owner of the waiting and the running. Blocks are taken by whoever calls ``enter``, and given
    back here.
    """

    def __init__(self, num_slots: int, blocks: BlockManager, notes: Notes) -> None:
        self.waiting = WaitingQueue()
        self.running = RunningSet(num_slots)
        self.totals = SchedulerTotals()
        self._blocks = blocks
        self._notes = notes

    def enter(self, sequence: Sequence, *, num_cached_tokens: int) -> None:
        """From the waiting to the running."""
        self.waiting.remove(sequence)
        self.running.enter(sequence)
        if sequence.admitted_s is None:
            sequence.admitted_s = self._notes.now_s
        self._notes.add(sequence, "admitted", num_cached_tokens)

    def preempt(self, sequence: Sequence) -> None:
        """From the running back to the waiting: it computes again later."""
        self.totals.num_preemptions += 1
        self._notes.add(sequence, "preempted", sequence.num_held_blocks)
        sequence.num_once_computed_tokens = max(
            sequence.num_once_computed_tokens, sequence.num_computed_tokens
        )
        if sequence.restore is not None:
            sequence.restore.pause()
        self._leave(sequence)
        sequence.num_expected_hit_tokens = self._blocks.find_prefix(sequence).num_tokens
        self.waiting.add([sequence])

    def end(self, sequence: Sequence) -> None:
        """Out of the running; one that waited has been taken out. Its last delta is due."""
        self._notes.add(sequence, "last_token", sequence.num_generated_tokens)
        if sequence.slot is not None:
            num_blocks = sequence.num_held_blocks
            self._leave(sequence)
            self._notes.add(sequence, "blocks_freed", num_blocks)

    def clear(self) -> None:
        """From any state: drop all sequences, free every slot and block."""
        self.waiting.clear()
        self.clear_running()

    def clear_running(self) -> None:
        """Also what the runner may hold of those that ran; nobody does any more."""
        self.running.clear()
        self._blocks.reset()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless slots, queues and blocks agree."""
        self.running.check_integrity()
        for sequences in (self.running, self.waiting):
            orders = [sequence.order for sequence in sequences]
            assert orders == sorted(set(orders)), "sequences stand out of order"
        for sequence in self.waiting:
            assert sequence.slot is None, "a waiting sequence holds a slot"
            assert not sequence.block_tables, "a waiting sequence holds blocks"
            assert not sequence.is_admitted, "the runner holds a waiting sequence"
            is_idle = sequence.restore is None or sequence.restore.is_done
            assert is_idle, "images are to be loaded for a waiting sequence"
        for sequence in self.running:
            is_whole = sequence.restore is None or not sequence.restore.pending
            assert is_whole or not sequence.is_admitted, "a sequence computes before it is restored"
        for sequence in [*self.waiting, *self.running]:
            assert sequence.finish_reason is None, "a finished sequence is still here"
        self._blocks.check_integrity(self.running)

    def _leave(self, sequence: Sequence) -> None:
        self.running.leave(sequence)
        if sequence.needs_prompt_logprobs:
            sequence.prompt_logprobs.clear()  # those of the whole prompt come again
        self._blocks.release(sequence)
