"""Finds stop strings in a text that arrives in pieces. Knows text only, no tokens and no requests.

Only a live partial match is held back: the longest tail of the text that begins one of the stop
strings. The match that completes first wins, whatever the pieces, so streamed and whole answers are
equal.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Scanned(NamedTuple):
    """What one piece brought."""

    text: str
    """May be shown now."""
    is_stopped: bool
    """A stop string was completed: nothing more may be shown."""


class StopStrings:
    """The state of one request's search."""

    def __init__(self, stops: Sequence[str], *, includes_stop: bool = False) -> None:
        """``includes_stop``: the text ends behind the stop string, not before it."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._includes_stop = includes_stop
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._max_partial_len = max(map(len, stops), default=1) - 1
        self._held = ""

    def push(self, piece: str) -> Scanned:
        """Add ``piece`` to the text. Precondition: no stop string was completed before."""
        text = self._held + piece
        cut = self._cut(text)
        if cut is not None:
            self._held = ""
            return Scanned(text[:cut], is_stopped=True)
        num_held = self._partial_len(text)
        self._held = text[len(text) - num_held :]
        return Scanned(text[: len(text) - num_held], is_stopped=False)

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str) -> int | None:
        """Where the match that completes first cuts the text; of those, the longest."""
        matches = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if not matches:
            return None
        end, start = min(matches)
        return end if self._includes_stop else start

    def _partial_len(self, text: str) -> int:
        for start in range(max(0, len(text) - self._max_partial_len), len(text)):
            if text[start] in self._first_chars:
                tail = text[start:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return len(tail)
        return 0
