"""How a case is timed: one definition for every engine that is driven step by step.

Standard library only: the script of a peer imports it with the Python of its own environment.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from benchmarks.engine_cases import Case, Prompts


class SteppedEngine(Protocol):
    """An engine that takes token ids and gives them out step by step."""

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        """Queue a request; greedy, and no token ends it early."""
        ...

    def step(self) -> Mapping[str, int]:
        """How many new tokens each request has since the last call; may be none."""
        ...

    def abort(self, request_ids: Collection[str]) -> None:
        """End these, if they are still here, and return when nothing runs any more."""
        ...


@dataclass(frozen=True, slots=True)
class Speed:
    """One run of a case."""

    tokens_per_s: float
    """All tokens of the time measured over that time, so that no step is left out."""
    step_s: float
    """Median of its steps."""


def measure_speed(
    engine: SteppedEngine,
    case: Case,
    prompts: Prompts,
    clock: Callable[[], float] = time.perf_counter,
) -> Speed:
    """Run a case on an idle engine, and leave it idle."""
    drawn = {str(index): prompts.draw(case.prompt_len) for index in range(case.num_seqs)}
    arriving = prompts.draw(case.arriving_len)
    started_s = clock()
    for request_id, prompt in drawn.items():
        engine.add(request_id, prompt, case.max_tokens)
    if case.kind == "prefill":
        timeline = _Timeline(engine, clock, started_s)
        timeline.step_until_first_tokens(set(drawn))
        return timeline.speed(case.num_seqs * case.prompt_len)
    _Timeline(engine, clock, started_s).step_until_first_tokens(set(drawn))
    timeline = _Timeline(engine, clock, clock())
    if case.kind == "decode":
        timeline.step_times(case.num_steps)
        num_tokens = timeline.num_tokens
    else:
        engine.add("arriving", arriving, 1)
        timeline.step_until_first_tokens({"arriving"})
        num_tokens = timeline.num_tokens - 1 + case.arriving_len
    engine.abort(drawn)
    return timeline.speed(num_tokens)


class _Timeline:
    """When steps ended. A step without a token belongs to the next one that has some."""

    def __init__(self, engine: SteppedEngine, clock: Callable[[], float], started_s: float) -> None:
        self._engine = engine
        self._clock = clock
        self._ends_s = [started_s]
        self.num_tokens = 0

    def step_times(self, num_steps: int) -> None:
        while len(self._ends_s) <= num_steps:
            self._step()

    def step_until_first_tokens(self, request_ids: set[str]) -> None:
        waiting = set(request_ids)
        while waiting:
            waiting -= self._step()

    def speed(self, num_tokens: int) -> Speed:
        times = sorted(end - start for start, end in pairwise(self._ends_s))
        middle = len(times) // 2
        return Speed(
            num_tokens / (self._ends_s[-1] - self._ends_s[0]),
            (times[middle] + times[-1 - middle]) / 2,
        )

    def _step(self) -> set[str]:
        num_new = self._engine.step()
        if num_new:
            self._ends_s.append(self._clock())
            self.num_tokens += sum(num_new.values())
        return set(num_new)
