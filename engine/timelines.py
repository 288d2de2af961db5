"""What happened to each request, for operators: the live ones and the newest finished ones.

Numbers and ids only: no prompt, no token id, no seed. Must not know connections.
"""

import math
from collections import deque
from dataclasses import dataclass, field

import msgspec

from engine.messages import EngineRequest, TimelineEvent
from engine.request_limits import num_places

MAX_FINISHED = 2048
MAX_GATEWAY_EVENTS = 16
MAX_EDGE_EVENTS = 32
"""Of the engine's events so many of the first and of the last are kept: long prompts have very many
chunks."""
MAX_AT_S = 1e9
_GATEWAY_KINDS = frozenset(
    {"received", "tokenized", "queued", "submitted"} | {"source_host", "source_disk", "source_peer"}
)
_RESTORED = "restored_"


@dataclass(slots=True, eq=False)
class Timeline:
    """One request's course."""

    request_id: str
    service_class: str
    num_samples: int
    num_prompt_tokens: int
    """Those that a lost engine had generated left out."""
    num_resumed_tokens: int
    sampling: dict[str, float | int | None]
    """As it was in force; of lists only how long they are."""
    first_events: list[TimelineEvent]
    last_events: deque[TimelineEvent] = field(default_factory=lambda: deque(maxlen=MAX_EDGE_EVENTS))
    num_gateway_events: int = 0
    num_events: int = 0
    """The engine's, those that were left out included."""
    num_chunks: int = 0
    num_preemptions: int = 0
    num_computed_tokens: int = 0
    """Of the prompt; what was computed again counts again."""
    num_generated_tokens: int = 0
    """By all samples that ended."""
    num_ended: int = 0
    cached_tokens: int | None = None
    restored_tokens: dict[str, int] = field(default_factory=dict)
    """Of these, what came from outside of the accelerator, by where it lay."""
    taken_s: float | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    """Times since the gateway received the request."""

    @property
    def is_finished(self) -> bool:
        return self.num_ended >= self.num_samples

    def add(self, event: TimelineEvent) -> None:
        """One of the engine's."""
        self.num_events += 1
        if self.num_events <= MAX_EDGE_EVENTS:
            self.first_events.append(event)
        else:
            self.last_events.append(event)
        match event.kind:
            case "taken":
                self.taken_s = event.at_s
            case "admitted" if self.admitted_s is None:
                self.admitted_s = event.at_s
                self.cached_tokens = event.value
            case kind if kind.startswith(_RESTORED):
                self.restored_tokens[kind.removeprefix(_RESTORED)] = event.value
            case "chunk":
                self.num_chunks += 1
                self.num_computed_tokens += event.value
            case "first_token" if self.first_token_s is None:
                self.first_token_s = event.at_s
            case "preempted":
                self.num_preemptions += 1
            case "last_token":
                self.last_token_s = event.at_s
                self.num_generated_tokens += event.value
                self.num_ended += 1

    def to_json(self) -> bytes:
        events = [*self.first_events, *self.last_events]
        num_left_out = self.num_events + self.num_gateway_events - len(events)
        return msgspec.json.encode(
            {
                "request_id": self.request_id,
                "service_class": self.service_class,
                "is_finished": self.is_finished,
                "num_samples": self.num_samples,
                "num_prompt_tokens": self.num_prompt_tokens,
                "num_resumed_tokens": self.num_resumed_tokens,
                "cached_tokens": self.cached_tokens,
                "restored_tokens": self.restored_tokens,
                "num_generated_tokens": self.num_generated_tokens,
                "num_chunks": self.num_chunks,
                "num_preemptions": self.num_preemptions,
                "sampling": self.sampling,
                "events": [{"kind": e.kind, "at_s": e.at_s, "value": e.value} for e in events],
                "num_events_left_out": num_left_out,
            }
        )


class Timelines:
    """Owner of all timelines. Live ones are bounded by credits."""

    def __init__(self) -> None:
        self._of_id: dict[str, Timeline] = {}
        self._finished: deque[Timeline] = deque()

    def open(self, timeline: Timeline) -> None:
        """The engine took the request."""
        self._of_id[timeline.request_id] = timeline

    def add(self, request_id: str, event: TimelineEvent) -> Timeline | None:
        """Returns the timeline if this event finished it."""
        timeline = self._of_id.get(request_id)
        if timeline is None:
            return None
        was_finished = timeline.is_finished
        timeline.add(event)
        if was_finished or not timeline.is_finished:
            return None
        self._finished.append(timeline)
        if len(self._finished) > MAX_FINISHED:
            oldest = self._finished.popleft()
            if self._of_id.get(oldest.request_id) is oldest:
                del self._of_id[oldest.request_id]
        return timeline

    def to_json(self, request_id: str) -> bytes | None:
        """None: not known, or no more."""
        timeline = self._of_id.get(request_id)
        return None if timeline is None else timeline.to_json()


def begin_timeline(request: EngineRequest) -> Timeline:
    """Of a request as it came, with what is well-formed of the gateway's own events."""
    events = [event for event in request.timeline[:MAX_GATEWAY_EVENTS] if _is_sound(event)]
    sampling = request.sampling
    return Timeline(
        request.request_id,
        request.service_class.name.lower(),
        num_samples=num_places(request),
        num_prompt_tokens=len(request.token_ids) - request.num_generated_tokens,
        num_resumed_tokens=request.num_generated_tokens,
        sampling={
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "min_tokens": sampling.min_tokens,
            "num_logprobs": sampling.num_logprobs,
            "num_prompt_logprobs": sampling.num_prompt_logprobs,
            "num_stop_token_ids": len(sampling.stop_token_ids),
            "num_logit_biases": len(sampling.logit_bias),
        },
        first_events=events,
        num_gateway_events=len(events),
    )


def _is_sound(event: TimelineEvent) -> bool:
    return event.kind in _GATEWAY_KINDS and math.isfinite(event.at_s) and 0 <= event.at_s < MAX_AT_S
