"""Where time went according to the events of a Chrome trace that torch's profiler wrote.

Imports no torch. What runs inside of something else on the same thread counts for itself alone.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from engine.profile import Operator
from engine.torch_trace import TraceEvent

STEP_LABEL = "headwater step"
PART_LABEL = "headwater "
"""Before a part's name; what `engine.operator_tracer` calls its own stretches."""
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_ON_HOST = ("cpu_op", "user_annotation")
_MATMULS = re.compile(
    r"mm$|matmul|linear|addmv|conv|_int8|_int4|onednn|^aten::(dot|einsum)|"  # operators
    r"gemm|gemv|cutlass|cublas|wgmma|splitk",  # kernels
    re.IGNORECASE,
)
_ATTENTION = re.compile(r"attention|fmha|flash|sdpa|paged", re.IGNORECASE)
_COLLECTIVES = re.compile(r"nccl|gloo|c10d|all_?reduce|all_?gather", re.IGNORECASE)
_SAMPLING = re.compile(r"arg_?max|softmax|sort|topk|multinomial|cumsum", re.IGNORECASE)
_NORMS = re.compile(r"rms_?norm|layer_?norm|rotary", re.IGNORECASE)


TraceTimes = dict[tuple[Operator, str], float]
"""Microseconds of all steps together, by operator and name."""


def has_kernels(events: Iterable[TraceEvent]) -> bool:
    """Whether a device did the work."""
    return any(event.cat == "kernel" for event in events)


def device_times(events: Iterable[TraceEvent]) -> TraceTimes:
    """By the names of kernels."""
    times: defaultdict[tuple[Operator, str], float] = defaultdict(float)
    for event in events:
        if event.cat in _KERNELS:
            times[_kernel_operator(event.name), event.name] += event.dur
    return times


def host_times(events: Iterable[TraceEvent]) -> TraceTimes:
    """By the names of torch's operators, and the parts of the step that they lie in.

    Outside of all parts is the host, which is left out.
    """
    times: TraceTimes = defaultdict(float)
    threads: defaultdict[tuple[object, object], list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event.cat in _ON_HOST:
            threads[event.pid, event.tid].append(event)
    for of_thread in threads.values():
        _add_thread(times, of_thread)
    return times


@dataclass(slots=True)
class _Open:
    name: str
    part: str | None
    end_us: float
    own_us: float
    is_matmul: bool


def _add_thread(times: TraceTimes, events: list[TraceEvent]) -> None:
    events.sort(key=lambda event: (event.ts, -event.dur))
    stack: list[_Open] = []
    for event in events:
        started_us, duration_us, name = event.ts, event.dur, event.name
        while stack and stack[-1].end_us <= started_us:
            _close(times, stack.pop())
        outer = stack[-1] if stack else None
        part = outer.part if outer is not None else None
        if name.startswith(PART_LABEL) and name != STEP_LABEL:
            part = name.removeprefix(PART_LABEL)
        is_matmul = bool(_MATMULS.search(name)) or (outer is not None and outer.is_matmul)
        if outer is not None:
            outer.own_us -= duration_us
        stack.append(_Open(name, part, started_us + duration_us, duration_us, is_matmul))
    while stack:
        _close(times, stack.pop())


def _close(times: TraceTimes, event: _Open) -> None:
    if event.part is not None:
        times[_host_operator(event), event.name] += max(0.0, event.own_us)


def _host_operator(event: _Open) -> Operator:
    if event.part == "attention":
        return "attention"
    if event.part == "collectives":
        return "collectives"
    if event.is_matmul:
        return "matmul"
    if _NORMS.search(event.name):
        return "norm and rotation"
    return "sampling" if event.part == "outputs" else "other"


def _kernel_operator(name: str) -> Operator:
    if _COLLECTIVES.search(name):
        return "collectives"
    if _ATTENTION.search(name):
        return "attention"
    if _MATMULS.search(name):
        return "matmul"
    if _NORMS.search(name):
        return "norm and rotation"
    return "sampling" if _SAMPLING.search(name) else "other"
