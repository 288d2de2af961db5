"""What the front knows of each request between its submission and its last delta.

The step loop's frames are forwarded unread, so a request's course is followed by the notes about
it. One that the step loop took without noting it was refused. Must not know connections.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import EngineRequest, ServiceClass
from engine.observations import RequestNote
from engine.request_limits import num_places


@dataclass(slots=True, eq=False)
class OpenRequest:
    """One request of one gateway."""

    source: int
    request_id: str
    service_class: ServiceClass
    num_tokens: int
    num_open_places: int
    num_aborts_left: int
    """One for each sample and one for all: more of them say nothing new."""
    is_started: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What a report said of requests."""

    taken: list[OpenRequest]
    """By the engine, without those it refused."""
    started: list[OpenRequest]
    """Nothing of the prompt is left to compute: it has a first token, or ended without one."""
    ended: list[tuple[OpenRequest, int]]
    """With the number of samples that ended."""


class OpenRequests:
    """Owner of the map from ids to requests, as the step loop has it, too."""

    def __init__(self) -> None:
        self._untaken: deque[OpenRequest] = deque()
        self._taken: dict[str, OpenRequest] = {}
        self._of_sender: dict[tuple[int, str], OpenRequest] = {}

    def submitted(self, source: int, request: EngineRequest) -> OpenRequest:
        places = num_places(request)
        entry = OpenRequest(
            source,
            request.request_id,
            request.service_class,
            len(request.token_ids),
            num_open_places=places,
            num_aborts_left=places + 1,
        )
        self._untaken.append(entry)
        self._of_sender.setdefault((source, request.request_id), entry)
        return entry

    def can_abort(self, source: int, request_id: str) -> bool:
        """Whether an abort can have an effect; counts it."""
        entry = self._of_sender.get((source, request_id))
        if entry is None or entry.num_aborts_left == 0:
            return False
        entry.num_aborts_left -= 1
        return True

    def follow(self, num_submits_taken: int, notes: Sequence[RequestNote]) -> Progress:
        """``notes`` are all of the report that says that so many were taken."""
        progress = Progress([], [], [])
        noted = {note.request_id for note in notes if note.event.kind == "taken"}
        for _ in range(num_submits_taken):
            entry = self._untaken.popleft()
            if entry.request_id in noted:
                noted.discard(entry.request_id)
                self._taken[entry.request_id] = entry
                progress.taken.append(entry)
            else:
                self._end(entry, entry.num_open_places, progress)
        for note in notes:
            kind = note.event.kind
            if kind != "first_token" and kind != "last_token":
                continue
            taken = self._taken.get(note.request_id)
            if taken is None:
                continue
            if kind == "last_token":
                self._end(taken, 1, progress)
            elif not taken.is_started:
                taken.is_started = True
                progress.started.append(taken)
        return progress

    def _end(self, entry: OpenRequest, num_samples: int, progress: Progress) -> None:
        entry.num_open_places -= num_samples
        progress.ended.append((entry, num_samples))
        if entry.num_open_places > 0:
            return
        if not entry.is_started:
            entry.is_started = True
            progress.started.append(entry)
        if self._taken.get(entry.request_id) is entry:
            del self._taken[entry.request_id]
        sender = (entry.source, entry.request_id)
        if self._of_sender.get(sender) is entry:
            del self._of_sender[sender]
