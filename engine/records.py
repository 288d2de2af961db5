"""The records of one engine, and the answers to queries about them. Numbers and ids only."""

from collections import deque
from collections.abc import Sequence

from engine.messages import EngineRequest, Query, Reply
from engine.open_requests import OpenRequest
from engine.rank_messages import StepReport
from engine.step_ring import StepRing
from engine.timelines import Timeline, Timelines, begin_timeline


class Records:
    """Owner of the ring of steps and of the timelines."""

    def __init__(self) -> None:
        self.steps = StepRing()
        self._timelines = Timelines()
        self._untaken: deque[Timeline] = deque()

    def submitted(self, request: EngineRequest) -> None:
        """It goes on to the step loop."""
        self._untaken.append(begin_timeline(request))

    def follow(self, report: StepReport, taken: Sequence[OpenRequest]) -> list[Timeline]:
        """``taken``: without those refused, in their order. Returns the timelines that ended."""
        if report.record is not None:
            self.steps.add(report.record)
        accepted = deque(taken)
        for _ in range(report.num_submits_taken):
            timeline = self._untaken.popleft()
            if accepted and accepted[0].request_id == timeline.request_id:
                accepted.popleft()
                self._timelines.open(timeline)
        ended = [self._timelines.add(note.request_id, note.event) for note in report.notes]
        return [timeline for timeline in ended if timeline is not None]

    def answer(self, query: Query, *, is_allowed: bool) -> Reply:
        """Without a payload if it is not allowed now, or nothing is known."""
        if not is_allowed:
            return Reply(query.query_id, None, is_throttled=True)
        return Reply(query.query_id, self._find(query))

    def _find(self, query: Query) -> bytes | None:
        if query.kind == "request":
            return self._timelines.to_json(query.argument)
        if not query.argument:
            return self.steps.to_json()
        is_count = query.argument.isascii() and query.argument.isdigit()
        return self.steps.to_json(int(query.argument[:9])) if is_count else None
