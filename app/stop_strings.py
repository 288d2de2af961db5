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

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._prefixes = {stop[:length] for stop in stops for length in range(1, len(stop))}
        self._max_partial_len = max(map(len, self._prefixes), default=0)
        self._held = ""

    def push(self, piece: str) -> Scanned:
        """Add ``piece`` to the text. Precondition: no stop string was completed before."""
        text = self._held + piece
        match = self._first_match(text)
        if match is not None:
            self._held = ""
            return Scanned(text[:match], is_stopped=True)
        num_held = self._partial_len(text)
        self._held = text[len(text) - num_held :]
        return Scanned(text[: len(text) - num_held], is_stopped=False)

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        """Where the match that completes first begins; of those, the longest."""
        matches = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        return min(matches)[1] if matches else None

    def _partial_len(self, text: str) -> int:
        for length in range(min(self._max_partial_len, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0
