"""The cases of the engine benchmark: the same work for every engine that it measures.

Standard library only: the script of a peer imports it with the Python of its own environment.
"""

import random
from dataclasses import dataclass
from typing import Literal

CONTEXT_LEN = 128
NUM_DECODE_STEPS = 64
MIXED_PROMPT_LEN = 2048


@dataclass(frozen=True, slots=True)
class Case:
    """``num_seqs`` random prompts of ``prompt_len``, with greedy answers that end at a length only.

    ``decode``: so many steps that each give every sequence one token. ``prefill``: until each has
    its first token. ``mixed``: until a prompt of ``arriving_len`` that comes while the sequences
    decode has its first token; its own tokens and theirs count.
    """

    name: str
    kind: Literal["decode", "prefill", "mixed"]
    num_seqs: int
    prompt_len: int
    num_steps: int = 0
    """Decode steps timed."""
    arriving_len: int = 0

    @property
    def max_tokens(self) -> int:
        """Of each answer: enough for what is timed, and for what the first sequences decode while
        the last ones prefill."""
        if self.kind == "prefill":
            return 1
        return self.num_steps + 2 * self.num_seqs + 8 + self.arriving_len // 16


def decode_case(name: str, num_seqs: int, num_steps: int = NUM_DECODE_STEPS) -> Case:
    """The context grows while it is measured: it is ``CONTEXT_LEN`` halfway."""
    return Case(name, "decode", num_seqs, CONTEXT_LEN - num_steps // 2, num_steps=num_steps)


CASES = (
    *(decode_case(f"decode_bs{num_seqs}", num_seqs) for num_seqs in (1, 4, 16, 64)),
    Case("prefill_512", "prefill", 1, 512),
    Case("prefill_2048", "prefill", 1, 2048),
    Case("prefill_8x512", "prefill", 8, 512),
    Case("mixed", "mixed", 16, CONTEXT_LEN, arriving_len=MIXED_PROMPT_LEN),
)


class Prompts:
    """Random token ids, so that no two prompts share a prefix."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._random = random.Random(seed)
        self._vocab_size = vocab_size

    def draw(self, length: int) -> list[int]:
        return [self._random.randrange(self._vocab_size) for _ in range(length)]
