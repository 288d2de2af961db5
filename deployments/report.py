"""What `headwater serve` and its child say to each other: the child reports the start, one line per
change; the parent asks for a gentle end by a signal.
"""

import re
import signal
from enum import StrEnum
from typing import Self

import msgspec

_ERROR_CLASS = re.compile(r"^(?:\w+\.)+\w+: ")
"""`engine.checkpoints.errors.HashMismatch: ` in front of the words."""


DRAIN_SIGNAL = signal.SIGUSR1
"""To the child: finish the open answers, then end."""


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class Report(msgspec.Struct, frozen=True):
    """Where the start stands; `detail` is one line for people."""

    state: State
    detail: str

    def to_line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        return msgspec.json.decode(line, type=cls)


def reason_in(text: str) -> str:
    """The last line that says something: of a traceback, the error's own words."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _ERROR_CLASS.sub("", lines[-1]) if lines else "no reason was given"
