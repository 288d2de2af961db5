"""What the front knows of each request between its submission and its last delta.

The step loop's frames are forwarded unread, so a request's course is followed by the notes about
it: one that the step loop took without noting it was refused. Places, though, are freed by what the
frames count, which is right however a sample ends. Must not know connections.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.credits import CreditLedger
from engine.messages import EngineRequest, ServiceClass
from engine.observations import RequestNote
from engine.rank_messages import StepReport
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
    """Nothing of the prompt is left to compute: it has a first token, or ended without one."""


class OpenRequests:
    """Owner of the map from ids to requests, as the step loop has it, too."""

    def __init__(self, ledger: CreditLedger) -> None:
        self._ledger = ledger
        self._untaken: deque[OpenRequest] = deque()
        self._taken: dict[str, OpenRequest] = {}
        self._of_sender: dict[tuple[int, str], OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._untaken) + len(self._taken)

    def submitted(self, source: int, request: EngineRequest) -> None:
        """It goes on to the step loop. Raises ``CreditError``."""
        places = num_places(request)
        num_tokens = len(request.token_ids)
        self._ledger.submitted(source, num_tokens, places, request.service_class)
        entry = OpenRequest(
            source,
            request.request_id,
            request.service_class,
            num_tokens,
            num_open_places=places,
            num_aborts_left=places + 1,
        )
        self._untaken.append(entry)
        self._of_sender.setdefault((source, request.request_id), entry)

    def can_abort(self, source: int, request_id: str) -> bool:
        """Whether an abort can have an effect; counts it."""
        entry = self._of_sender.get((source, request_id))
        if entry is None or entry.num_aborts_left == 0:
            return False
        entry.num_aborts_left -= 1
        return True

    def follow(self, report: StepReport) -> list[OpenRequest]:
        """Count what a report says. Returns the requests that the engine took, without those it
        refused.
        """
        self._ledger.taken(report.num_submits_taken)
        taken = self._take(report.num_submits_taken, report.notes)
        for note in report.notes:
            entry = self._taken.get(note.request_id)
            if entry is None:
                continue
            if note.event.kind == "first_token":
                self._start(entry)
            elif note.event.kind == "last_token":
                entry.num_open_places -= 1
                if entry.num_open_places == 0:
                    self._end(entry)
        for frame in report.frames:
            if frame.num_finished == 0:
                continue
            for service_class in ServiceClass:
                if num_finished := frame.num_finished_of_class[service_class]:
                    self._ledger.finished(frame.source, num_finished, service_class)
        return taken

    def _take(self, num_submits: int, notes: Sequence[RequestNote]) -> list[OpenRequest]:
        noted = {note.request_id for note in notes if note.event.kind == "taken"}
        taken = []
        for _ in range(num_submits):
            entry = self._untaken.popleft()
            if entry.request_id in noted:
                noted.discard(entry.request_id)
                self._taken[entry.request_id] = entry
                taken.append(entry)
            else:
                self._end(entry)
        return taken

    def _start(self, entry: OpenRequest) -> None:
        if not entry.is_started:
            entry.is_started = True
            self._ledger.started(entry.service_class, entry.num_tokens)

    def _end(self, entry: OpenRequest) -> None:
        self._start(entry)
        if self._taken.get(entry.request_id) is entry:
            del self._taken[entry.request_id]
        sender = (entry.source, entry.request_id)
        if self._of_sender.get(sender) is entry:
            del self._of_sender[sender]
