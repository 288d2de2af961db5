"""What a recording of steps found: where their time went, by operator, and a trace to look at.

Also what is asked for. Imports no torch; must not know how steps are recorded.
"""

from typing import Literal

import msgspec

Operator = Literal[
    "attention", "matmul", "collectives", "sampling", "norm and rotation", "other", "host"
]
OPERATORS: tuple[Operator, ...] = (
    "attention",
    "matmul",
    "collectives",
    "sampling",
    "norm and rotation",
    "other",
    "host",
)
MAX_STEPS = 1000
"""Of one recording."""
MAX_TIMEOUT_S = 120.0
_NAME_WIDTH = 40
DEFAULT_TIMEOUT_S = 30.0


class ProfileOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The argument of a ``Query`` for a profile, as JSON."""

    num_steps: int
    timeout_s: float

    @property
    def is_valid(self) -> bool:
        return 1 <= self.num_steps <= MAX_STEPS and 0 < self.timeout_s <= MAX_TIMEOUT_S


class ProfileLine(msgspec.Struct, frozen=True):
    """A part of the mean step."""

    name: str
    operator: Operator
    ms: float
    share: float
    """Of the whole step."""


class ProfileSummary(msgspec.Struct, frozen=True):
    """Of the steps of one recording."""

    num_steps: int
    """Recorded; fewer than asked for if the engine had no work before the time was over."""
    num_steps_asked: int
    step_ms: float
    """Mean of the steps that ``operators`` is about: from a step's plan to its frames."""
    num_prefill_tokens: float
    """Of the mean step."""
    num_decodes: float
    operators: list[ProfileLine]
    """Of each kind, together the whole step."""
    details: list[ProfileLine]
    """Parts of these: phases of the compiled step, or torch's operators and kernels, the longest
    ones.
    """
    source: Literal["compiled step", "torch", "device", "engine"]
    """What ``operators`` was found with: clocks of the compiled step, torch's operators, kernels of
    the device, or the engine's own clock alone.
    """
    num_steps_in_operators: int
    """Torch's operators are recorded in the first steps only."""
    notes: list[str]
    """What is missing, and why."""


class Profile(msgspec.Struct, frozen=True, tag="profile"):
    """The answer."""

    summary: ProfileSummary
    trace: bytes | None
    """Chrome's trace format, JSON in gzip; None if it is too large to send."""


class ProfileRefused(msgspec.Struct, frozen=True, tag="refused"):
    """Another recording is under way: one at a time."""


ProfileAnswer = Profile | ProfileRefused


def render_profile(summary: ProfileSummary) -> str:
    """As a table for a terminal."""
    prefill, decodes = f"{summary.num_prefill_tokens:.1f}", f"{summary.num_decodes:.1f}"
    tokens = f"{prefill} prefill tokens and {decodes} decodes"
    lines = [
        f"{summary.num_steps_in_operators} steps, {summary.step_ms:.2f} ms each, with {tokens}",
        f"{'operator':<{_NAME_WIDTH}}{'ms/step':>10}{'share':>8}",
    ]
    for line in summary.operators:
        lines.append(_row(line, line.name))
        lines += [
            _row(detail, f"  {detail.name}")
            for detail in summary.details
            if detail.operator == line.operator
        ]
    lines += [f"note: {note}" for note in summary.notes]
    return "\n".join(lines)


def _row(line: ProfileLine, name: str) -> str:
    return f"{name[: _NAME_WIDTH - 1]:<{_NAME_WIDTH}}{line.ms:>10.3f}{line.share:>8.1%}"
