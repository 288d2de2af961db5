"""Where a runner tells what it is doing in a step, for as long as somebody listens.

One per runner, made with it. Imports no torch; must not know what is made of it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

Part = Literal["model", "attention", "collectives", "outputs"]
"""``model``: all layers; ``outputs``: logits and sampling; the others lie inside of these."""

_NOBODY = nullcontext()


class StepListener(Protocol):
    """Told by the thread that runs the steps."""

    def part(self, name: Part) -> AbstractContextManager[None]:
        """What is timed while it is open; parts lie inside of one another."""
        ...


class StepProbe:
    """Costs next to nothing while nobody listens."""

    def __init__(self, *, has_torch: bool = False, device: str = "cpu") -> None:
        self.has_torch = has_torch
        """Whether the steps run operators that torch's profiler can see."""
        self.device = device
        self.phase_times_ns: Callable[[], Mapping[str, int]] | None = None
        """Of the compiled step, where it runs: nanoseconds per phase, added up since start."""
        self.listener: StepListener | None = None

    def part(self, name: Part) -> AbstractContextManager[None]:
        listener = self.listener
        return _NOBODY if listener is None else listener.part(name)
