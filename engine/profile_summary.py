"""Adds up what a recording holds, by operator. Imports no torch; pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from engine.profile import OPERATORS, Operator, ProfileLine, ProfileSummary
from engine.step_recording import RecordedStep
from engine.torch_trace import TraceEvent
from engine.trace_times import device_times, has_kernels, host_times

NUM_DETAILS = 20
PHASES: Mapping[str, Operator] = {
    "norm": "norm and rotation",
    "qkv": "matmul",
    "rotate": "norm and rotation",
    "attention": "attention",
    "output": "matmul",
    "mlp": "matmul",
    "down": "matmul",
    "head": "matmul",
}
"""Of the compiled step (`engine.native.library.PhaseTimes`), in the order of a layer."""
_DEVICE_NOTE = "host is the time in which no kernel ran"

_Times = Mapping[tuple[Operator, str], float]
"""Nanoseconds by operator and name."""


def summarize(
    steps: Sequence[RecordedStep],
    *,
    num_asked: int,
    events: Sequence[TraceEvent] = (),
    num_traced: int = 0,
    notes: Sequence[str] = (),
) -> ProfileSummary:
    """``events``: slices of torch's trace of the first ``num_traced`` steps, if there is one."""
    source: Literal["compiled step", "torch", "device", "engine"]
    used, notes = steps, list(notes)
    if steps and steps[0].phases_ns:
        source, times = "compiled step", _compiled_times(steps)
    elif has_kernels(events):
        source, times = "device", _in_ns(device_times(events))
        used = steps[:num_traced]
        notes.append(_DEVICE_NOTE)
    elif events:
        source, times = "torch", _in_ns(host_times(events))
        used = steps[:num_traced]
    else:
        source, times = "engine", _engine_times(steps)
    if len(steps) < num_asked:
        notes.append(f"only {len(steps)} of {num_asked} steps came before the time was over")
    num_used = max(1, len(used))
    total_ns = float(sum(step.duration_ns for step in used))
    return ProfileSummary(
        num_steps=len(steps),
        num_steps_asked=num_asked,
        step_ms=total_ns / num_used / 1e6,
        num_prefill_tokens=sum(step.num_prefill_tokens for step in used) / num_used,
        num_decodes=sum(step.num_decodes for step in used) / num_used,
        operators=_by_operator(times, total_ns, num_used),
        details=_details(times, total_ns, num_used),
        source=source,
        num_steps_in_operators=len(used),
        notes=notes,
    )


def _compiled_times(steps: Sequence[RecordedStep]) -> _Times:
    times: defaultdict[tuple[Operator, str], float] = defaultdict(float)
    for step in steps:
        for name, ns in step.phases_ns.items():
            times[PHASES.get(name, "other"), name] += ns
        head_ns = step.phases_ns.get("head", 0)
        layers_ns = sum(step.phases_ns.values()) - head_ns
        # The logits are computed among the outputs, everything else among the layers.
        times["other", "embedding, inputs"] += max(0, step.own_ns("model") - layers_ns)
        times["sampling", "sampling"] += max(0, step.own_ns("outputs") - head_ns)
        times["collectives", "collectives"] += step.own_ns("collectives")
    return times


def _engine_times(steps: Sequence[RecordedStep]) -> _Times:
    times: defaultdict[tuple[Operator, str], float] = defaultdict(float)
    for step in steps:
        times["other", "layers"] += step.own_ns("model")
        times["attention", "attention"] += step.own_ns("attention")
        times["sampling", "logits, sampling"] += step.own_ns("outputs")
        times["collectives", "collectives"] += step.own_ns("collectives")
    return times


def _in_ns(times_us: _Times) -> _Times:
    return {key: us * 1e3 for key, us in times_us.items()}


def _by_operator(times: _Times, total_ns: float, num_steps: int) -> list[ProfileLine]:
    sums: defaultdict[Operator, float] = defaultdict(float)
    for (operator, _), ns in times.items():
        sums[operator] += ns
    sums["host"] += max(0.0, total_ns - sum(sums.values()))
    return [_line(name, name, sums[name], total_ns, num_steps) for name in OPERATORS]


def _details(times: _Times, total_ns: float, num_steps: int) -> list[ProfileLine]:
    longest = sorted(times.items(), key=lambda item: -item[1])[:NUM_DETAILS]
    return [
        _line(name, operator, ns, total_ns, num_steps)
        for (operator, name), ns in longest
        if ns > 0 and name != operator
    ]


def _line(name: str, operator: Operator, ns: float, total_ns: float, num_steps: int) -> ProfileLine:
    share = ns / total_ns if total_ns else 0.0
    return ProfileLine(name[:200], operator, ms=ns / num_steps / 1e6, share=share)
