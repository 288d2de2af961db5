"""Writes the Chrome trace of a recording: its own tracks, and torch's events where there are any.

Tracks of its own: steps, their parts, and the phases of the compiled step. Of a phase only the sum
over a step is known, so each is one slice, laid one after the other from where its part began.
"""

import gzip
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from engine.profile_summary import PHASES
from engine.step_recording import RecordedPart, RecordedStep, StepRecording
from engine.torch_trace import TorchTrace
from engine.trace_times import PART_LABEL

PROCESS_ID = 99_999_999
"""No process has it, so that our tracks lie beside those of torch, which has the real one."""
_STEPS, _PARTS, _PHASES = 1, 2, 3
_TRACKS = {_STEPS: "steps", _PARTS: "parts", _PHASES: "phases of the compiled step (sums)"}
_GZIP_LEVEL = 5


def encode_trace(
    recording: StepRecording,
    torch_trace: TorchTrace | None,
    metadata: Mapping[str, Any],
    *,
    origin_us: float = 0.0,
) -> bytes:
    """JSON in gzip. ``origin_us``: when the first step began, on torch's clock."""
    own = _own_events(recording.steps, origin_us - (recording.origin_ns or 0) / 1e3)
    head: Mapping[str, object] = {"displayTimeUnit": "ms"}
    events: Sequence[msgspec.Raw] = ()
    if torch_trace is not None:
        head, events = torch_trace.head, torch_trace.raw_events
    whole = {**head, "traceEvents": [*events, *own], "metadata": metadata}
    return gzip.compress(msgspec.json.encode(whole), _GZIP_LEVEL)


def _own_events(steps: Sequence[RecordedStep], offset_us: float) -> Iterator[dict[str, Any]]:
    yield _name("process_name", 0, "headwater")
    for track, name in _TRACKS.items():
        yield _name("thread_name", track, name)
    for number, step in enumerate(steps):
        tokens = {"prefill_tokens": step.num_prefill_tokens, "decodes": step.num_decodes}
        yield _slice(f"step {number}", _STEPS, step.started_ns, step.duration_ns, offset_us, tokens)
        for part in step.parts:
            yield _slice(
                PART_LABEL + part.name, _PARTS, part.started_ns, part.duration_ns, offset_us
            )
        yield from _phases(step, offset_us)


def _phases(step: RecordedStep, offset_us: float) -> Iterator[dict[str, Any]]:
    started_ns = _start_of(step.parts, "model", step.started_ns)
    for name in PHASES:
        if name == "head":
            started_ns = max(started_ns, _start_of(step.parts, "outputs", started_ns))
        duration_ns = step.phases_ns.get(name, 0)
        if duration_ns > 0:
            yield _slice(name, _PHASES, started_ns, duration_ns, offset_us)
            started_ns += duration_ns


def _start_of(parts: Sequence[RecordedPart], name: str, otherwise_ns: int) -> int:
    return min((part.started_ns for part in parts if part.name == name), default=otherwise_ns)


def _slice(
    name: str,
    track: int,
    started_ns: int,
    duration_ns: int,
    offset_us: float,
    details: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "headwater",
        "name": name,
        "pid": PROCESS_ID,
        "tid": track,
        "ts": started_ns / 1e3 + offset_us,
        "dur": duration_ns / 1e3,
        "args": details or {},
    }


def _name(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": PROCESS_ID, "tid": track, "args": {"name": name}}
