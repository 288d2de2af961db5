"""Requests to one real engine, each when its time has come, and how they fared. Must not know what
that is compared with.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from deployments.offline_engine import check_output
from engine.engine import Engine
from engine.messages import EngineRequest
from simulator.outcome import Outcome
from simulator.workload import SimulatedRequest, Workload


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One request and when it is due, in seconds after the start."""

    ask: EngineRequest
    due_s: float


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request."""

    ttft_s: float
    tpot_s: float
    num_prompt_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """Means over all requests."""

    ttft_s: float
    tpot_s: float
    hit_rate: float

    @classmethod
    def of_served(cls, served: Sequence[Served]) -> Self:
        num_cached = sum(request.num_cached_tokens for request in served)
        return cls(
            fmean(request.ttft_s for request in served),
            fmean(request.tpot_s for request in served),
            num_cached / sum(request.num_prompt_tokens for request in served),
        )

    @classmethod
    def of_outcome(cls, outcome: Outcome) -> Self:
        assert outcome.tpot_s is not None
        return cls(outcome.ttft_s.mean, outcome.tpot_s.mean, outcome.hit_rate)


def serve(
    engine: Engine, requests: Sequence[TimedRequest], note_step: Callable[[float], None]
) -> list[Served]:
    """To the last answer; ``note_step`` is told how long each step took.

    The engine's thread does nothing else. Precondition: answers have two tokens or more.
    """
    coming = list(reversed(requests))
    due_of = {request.ask.request_id: request for request in requests}
    begun: dict[str, tuple[float, int]] = {}
    served: list[Served] = []
    started_s = time.perf_counter()
    while coming or engine.has_work:
        now_s = time.perf_counter() - started_s
        while coming and coming[-1].due_s <= now_s:
            engine.add(coming.pop().ask)
        if not engine.has_work:
            time.sleep(max(0.0, coming[-1].due_s - now_s))
            continue
        output = engine.step()
        check_output(output)
        now_s = time.perf_counter() - started_s
        if output.record is not None:
            note_step(output.record.step_time_s)
        for delta in output.deltas:
            if delta.request_id not in begun:
                assert delta.usage is not None
                begun[delta.request_id] = now_s, delta.usage.cached_tokens
            if delta.finish_reason is not None:
                assert delta.usage is not None
                request = due_of[delta.request_id]
                first_s, num_cached = begun[delta.request_id]
                served.append(
                    Served(
                        first_s - request.due_s,
                        (now_s - first_s) / (delta.usage.completion_tokens - 1),
                        len(request.ask.token_ids),
                        num_cached,
                    )
                )
    return served


def as_workload(requests: Sequence[TimedRequest], block_size_tokens: int) -> Workload:
    """The same for a simulator."""
    return Workload(
        "replay",
        block_size_tokens,
        tuple(
            SimulatedRequest(
                request.ask.request_id,
                request.due_s,
                len(request.ask.token_ids),
                request.ask.sampling.max_tokens,
                request.ask.block_keys,
            )
            for request in requests
        ),
    )
