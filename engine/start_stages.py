"""What the start of a replica took, part by part: measured where it happens, told in one line.

Must not know what a part does. Imports no torch.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage


class StageClock:
    """Stages that follow each other without a gap; the first begins at ``began_s``."""

    def __init__(
        self, began_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``began_s``: by ``clock``, which all processes of a machine share; now if not given."""
        self._clock = clock
        self._last_s = clock() if began_s is None else began_s
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In order."""
        return tuple(self._stages)

    def end(self, name: str, num_bytes: int = 0) -> None:
        """All since the stage before was ``name``, in which so many bytes were moved."""
        now_s = self._clock()
        self._stages.append(Stage(name, now_s - self._last_s, num_bytes))
        self._last_s = now_s


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """From when a replica was asked for until it was ready."""

    started_from: Rung
    """How warm the weights stood on the node then."""
    total_s: float
    stages: tuple[Stage, ...]

    def __str__(self) -> str:
        return f"{self.total_s:.2f} s from {self.started_from.name}: {describe(self.stages)}"


def describe(stages: Sequence[Stage]) -> str:
    """``process 0.41 s, weights 0.95 s (269 MB), ...``"""
    return ", ".join(
        f"{stage.name} {stage.time_s:.2f} s"
        + (f" ({stage.num_bytes / 10**6:,.0f} MB)" if stage.num_bytes else "")
        for stage in stages
    )
