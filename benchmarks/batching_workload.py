"""What the batching benchmark asks: lengths spread over two orders of magnitude, and arrivals.

Seeded, and the same for every policy. Must not know tokens, engines or policies.
"""

import math
import random
from dataclasses import dataclass

_NUM_STRATA = 64


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Lengths in tokens, log-uniform: as many between 8 and 16 as between 400 and 800."""

    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"lengths must be 1 or more and in order, got {self}")

    def at(self, fraction: float) -> int:
        """The length that ``fraction`` of all lengths lie below."""
        return round(
            math.exp(math.log(self.shortest) * (1 - fraction) + math.log(self.longest) * fraction)
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt and the length of its answer."""

    index: int
    prompt_len: int
    output_len: int
    arrival_s: float
    """Since the start of the run."""


def draw_asks(
    num_asks: int,
    *,
    prompts: LengthRange,
    outputs: LengthRange,
    seed: int,
    asks_per_s: float | None = None,
) -> list[Ask]:
    """In order of arrival: a Poisson process of ``asks_per_s``; all at once when it is ``None``.

    Each 64 consecutive answers hold one of every 64th of the distribution, in random order, so that
    a short run sees the whole of it. (The longest of 32 is then 3 % longer than of 32 independent
    draws.)
    """
    draw = random.Random(seed)
    asks: list[Ask] = []
    strata: list[int] = []
    arrival_s = 0.0
    for index in range(num_asks):
        if not strata:
            strata = draw.sample(range(_NUM_STRATA), _NUM_STRATA)
        fraction = (strata.pop() + draw.random()) / _NUM_STRATA
        if asks_per_s is not None:
            arrival_s += draw.expovariate(asks_per_s)
        asks.append(Ask(index, prompts.at(draw.random()), outputs.at(fraction), arrival_s))
    return asks
