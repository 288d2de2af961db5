"""Who is handed to the engine when, and as what: the policies that are compared. Decides purely;
must not know engines or clocks.

- ``continuous``: whoever waits starts at the engine's next step, in the place of one that ended.
  The engine as it is; only so many wait inside it as can start soon.
- ``static``: when the last batch has ended, as many as wait, up to the batch size, start together.
  The batch keeps its shape until its longest answer ends, as tensors of `generate` do: a row whose
  answer has ended is computed on, and what it yields is dropped. As good as such a batch can be:
  prompts of different lengths are computed without padding, the first rows decode while the last
  prompts are computed, the first tokens are delivered at once, and nobody waits for a full batch.
- ``static_compact``: the same, but ended rows leave the tensors; their places stay empty until the
  batch ends. Needs an engine whose batches may shrink, as this one.
- ``dynamic``: a batch is gathered from the first arrival on for a window, or until it is full; all
  its prompts are padded to the longest, all its rows computed until the longest answer ends. The
  usual inference server before token-level scheduling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.batching_workload import Ask

_LOOKAHEAD = 2
"""Batches inside the engine: one runs, one waits, so that no place stays empty for a step."""


class Row(NamedTuple):
    """What the engine computes for one ask."""

    prompt_len: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Policy:
    """When asks start, and how a batch of them is shaped."""

    name: str
    is_batch: bool = True
    """A batch starts when the one before has ended."""
    keeps_rows: bool = False
    """Rows are computed until the longest answer of their batch ends."""
    pads_prompts: bool = False
    window_s: float = 0.0
    """Longest wait of a first ask for others."""

    def num_starts(
        self, *, num_waiting: int, longest_wait_s: float, num_open: int, batch_size: int
    ) -> int:
        """How many of those that wait start now, the first ones first."""
        if not self.is_batch:
            return max(0, min(num_waiting, _LOOKAHEAD * batch_size - num_open))
        if num_open > 0:
            return 0
        if num_waiting < batch_size and longest_wait_s < self.window_s:
            return 0
        return min(num_waiting, batch_size)

    def shape(self, batch: Sequence[Ask]) -> list[Row]:
        """One row for each ask of those that start together."""
        longest_prompt = max(ask.prompt_len for ask in batch)
        longest_output = max(ask.output_len for ask in batch)
        return [
            Row(
                longest_prompt if self.pads_prompts else ask.prompt_len,
                longest_output if self.keeps_rows else ask.output_len,
            )
            for ask in batch
        ]


CONTINUOUS = Policy("continuous", is_batch=False)
STATIC = Policy("static", keeps_rows=True)
STATIC_COMPACT = Policy("static_compact")
DYNAMIC = Policy("dynamic", keeps_rows=True, pads_prompts=True, window_s=0.05)

POLICIES = (CONTINUOUS, STATIC, STATIC_COMPACT, DYNAMIC)
