"""What torch's profiler wrote, taken apart without holding other threads up for long.

A call into the JSON decoder keeps the interpreter's lock until it returns, so events stay as they
were written and are decoded one by one. Imports no torch; must not know what they are counted for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

_EVENTS = "traceEvents"


class TraceEvent(msgspec.Struct, frozen=True, gc=False):
    """What is looked at of an event in Chrome's trace format; times in microseconds.

    The garbage collector, which runs between steps, does not see them: they are many.
    """

    name: str = ""
    ph: str = ""
    cat: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = 0.0
    dur: float = 0.0


@dataclass(frozen=True, slots=True)
class TorchTrace:
    """A whole trace, as JSON."""

    head: Mapping[str, msgspec.Raw]
    """All but the events."""
    raw_events: list[msgspec.Raw]

    def slices(self) -> Iterator[TraceEvent]:
        """Events with a duration. Raises ``msgspec.MsgspecError`` for what is none."""
        decode = msgspec.json.Decoder(TraceEvent).decode
        for raw in self.raw_events:
            event = decode(raw)
            if event.ph == "X":
                yield event


def read_torch_trace(content: bytes) -> TorchTrace | None:
    """None for what is no trace."""
    try:
        head = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        events = head.pop(_EVENTS, None)
        if events is None:
            return None
        return TorchTrace(head, msgspec.json.decode(events, type=list[msgspec.Raw]))
    except msgspec.DecodeError:
        return None
