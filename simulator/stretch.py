"""Many steps in which all running sequences decode, taken at once: when each ends, and what all of
them change.

Step times are affine in the context, which grows by one token per sequence and step. Must not know
who waits, or why nothing else happens meanwhile.
"""

import math
from collections.abc import Sequence as OrderedSequence
from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.scheduler import Scheduler
from engine.sequence import Sequence


@dataclass(slots=True)
class Stretch:
    """Steps side by side in time; the first one takes ``first_s``, each later one ``slope_s``
    more.
    """

    started_s: float
    num_steps: int
    first_s: float
    slope_s: float

    @property
    def ends_s(self) -> float:
        return self.started_s + self.time_s(self.num_steps)

    def step_time_s(self, index: int) -> float:
        return self.first_s + index * self.slope_s

    def time_s(self, num_steps: int) -> float:
        """Of the first ``num_steps``."""
        return num_steps * self.first_s + self.slope_s * (num_steps * (num_steps - 1) / 2)

    def cut(self, now_s: float) -> None:
        """End with the step that is under way."""
        past_s = now_s - self.started_s
        # first × n + slope × n (n − 1) / 2 = past, solved for n in the form that divides by no
        # small number; rounding is then put right.
        linear_s = self.first_s - self.slope_s / 2
        root_s = math.sqrt(max(0.0, linear_s * linear_s + 2 * self.slope_s * past_s))
        num_steps = max(1, math.ceil(2 * past_s / (linear_s + root_s)))
        while num_steps > 1 and self.time_s(num_steps - 1) >= past_s:
            num_steps -= 1
        while self.time_s(num_steps) < past_s:
            num_steps += 1
        self.num_steps = min(self.num_steps, num_steps)


def blocks_needed(
    running: OrderedSequence[Sequence], num_steps: int, block_size_tokens: int
) -> int:
    """Blocks that ``running`` take in so many steps."""
    return sum(
        [
            max(0, -(-(s.num_computed_tokens + num_steps) // block_size_tokens) - s.num_held_blocks)
            for s in running
        ]
    )


def advance(scheduler: Scheduler, blocks: BlockManager, num_steps: int) -> None:
    """Let all that run decode ``num_steps`` tokens, as ``plan`` and ``commit`` would step by step.

    Precondition: all of them decode, nobody ends, and there are blocks for all.
    """
    block_size = blocks.block_size
    running = scheduler.running
    growth: list[tuple[int, int, int]] = []
    """Step, place in the order and position of everyone who needs a block."""
    for place, sequence in enumerate(running):
        sequence.generated_ids += sequence.generated_ids[-1:] * num_steps
        begin = sequence.num_computed_tokens
        first = max(begin, sequence.num_writable_tokens)
        growth += [(p - begin, place, p) for p in range(first, begin + num_steps, block_size)]
        sequence.num_computed_tokens = begin + num_steps
    # Blocks are handed out, and evicted for it, step by step.
    growth.sort()
    for _, place, position in growth:
        sequence = running[place]
        computed = sequence.num_computed_tokens
        sequence.num_computed_tokens = position
        blocks.extend(sequence, position + 1, [])
        sequence.num_computed_tokens = computed
    for sequence in running:
        if sequence.num_computed_tokens // block_size > sequence.num_published_blocks:
            blocks.publish(sequence)
    blocks.commit()
    scheduler.totals.num_generated_tokens += num_steps * len(running)
