"""What the child of `headwater serve` tells its parent about the start, one line per change."""

from enum import StrEnum
from typing import Self

import msgspec


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


def last_line(text: str) -> str:
    """The last line that says something: of a traceback, the error itself."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"
