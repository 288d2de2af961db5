"""Where time went according to the events of a Chrome trace that torch's profiler wrote.

Imports no torch. What runs inside of something else on the same thread counts for itself alone.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.profile import Operator

Event = Mapping[str, Any]

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


@dataclass(slots=True)
class TraceTimes:
    """Microseconds, of all steps together."""

    by_operator: dict[Operator, float] = field(default_factory=lambda: defaultdict(float))
    by_name: dict[tuple[Operator, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, operator: Operator, name: str, duration_us: float) -> None:
        self.by_operator[operator] += duration_us
        self.by_name[operator, name] += duration_us


def has_kernels(events: Iterable[Event]) -> bool:
    """Whether a device did the work."""
    return any(event.get("cat") == "kernel" for event in events)


def device_times(events: Iterable[Event]) -> TraceTimes:
    """By the names of kernels."""
    times = TraceTimes()
    for event in events:
        if event.get("cat") in _KERNELS and event.get("ph") == "X":
            name = str(event["name"])
            times.add(_kernel_operator(name), name, float(event["dur"]))
    return times


def host_times(events: Iterable[Event]) -> TraceTimes:
    """By the names of torch's operators, and the parts of the step that they lie in.

    Outside of all parts is the host, which is left out.
    """
    times = TraceTimes()
    threads: defaultdict[tuple[object, object], list[Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in _ON_HOST:
            threads[event.get("pid"), event.get("tid")].append(event)
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


def _add_thread(times: TraceTimes, events: list[Event]) -> None:
    events.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
    stack: list[_Open] = []
    for event in events:
        started_us, duration_us = float(event["ts"]), float(event["dur"])
        while stack and stack[-1].end_us <= started_us:
            _close(times, stack.pop())
        outer = stack[-1] if stack else None
        name = str(event["name"])
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
        times.add(_host_operator(event), event.name, max(0.0, event.own_us))


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
