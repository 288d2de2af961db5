"""Collects what happens to requests inside planning, at the time that the engine says it is.

A decode makes no note, so that a step of nothing else costs nothing here. Reads no clock.
"""

from typing import Literal

from engine.messages import TimelineEvent
from engine.observations import RequestNote
from engine.sequence import Sequence

NoteKind = Literal[
    "taken",
    "admitted",
    "restored_host",
    "restored_disk",
    "restored_peer",
    "restored_object_store",
    "chunk",
    "first_token",
    "preempted",
    "last_token",
    "blocks_freed",
]


class Notes:
    """Owner of the notes that nobody has taken yet."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """On the engine's clock; the engine sets it."""
        self._notes: list[RequestNote] = []

    def add(self, sequence: Sequence, kind: NoteKind, value: int = 0) -> None:
        """``kind`` happens to ``sequence`` now."""
        request = sequence.request
        at_s = request.age_s + self.now_s - sequence.taken_s
        self._notes.append(RequestNote(request.request_id, TimelineEvent(kind, at_s, value)))

    def take(self) -> list[RequestNote]:
        """All since the last call, in the order in which they came."""
        notes, self._notes = self._notes, []
        return notes
