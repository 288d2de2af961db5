"""Answers a list of requests on an engine of this process as they come. Must not know the command
line.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deployments.offline_engine import OfflineEngine
from engine.errors import EngineConfigError
from engine.replay_file import ReplayedAnswer, ReplayRequest

_WARM_UP_TOKENS = 2


@dataclass(slots=True)
class _Running:
    request: ReplayRequest
    num_answered: int = 0
    first_token_s: float = 0.0


def replay(
    engine: OfflineEngine,
    requests: Sequence[ReplayRequest],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[ReplayedAnswer]:
    """In the order in which the answers end. Raises `EngineError` before the first one begins if
    one does not fit.

    ``requests``: in the order of their arrival.
    """
    _check_lengths(engine, requests)
    _warm_up(engine, max(request.num_prompt_tokens for request in requests))
    began_s = clock()
    coming = list(reversed(requests))
    running: dict[str, _Running] = {}
    answers: list[ReplayedAnswer] = []
    while coming or running:
        now_s = clock() - began_s
        while coming and coming[-1].arrival_s <= now_s:
            request = coming.pop()
            request_id = f"r{len(requests) - len(coming)}"
            running[request_id] = _Running(request)
            engine.add(request_id, request.num_prompt_tokens, request.num_answer_tokens)
        if not running:
            sleep(coming[-1].arrival_s - now_s)
            continue
        answered, _ = engine.step()
        now_s = clock() - began_s
        for request_id in sorted(answered):
            entry = running[request_id]
            entry.num_answered += 1
            if entry.num_answered == 1:
                entry.first_token_s = now_s
            if entry.num_answered == entry.request.num_answer_tokens:
                del running[request_id]
                answers.append(ReplayedAnswer(entry.request, entry.first_token_s, now_s))
    return answers


def _check_lengths(engine: OfflineEngine, requests: Sequence[ReplayRequest]) -> None:
    most = engine.max_request_tokens
    for request in requests:
        if request.num_prompt_tokens + request.num_answer_tokens > most:
            raise EngineConfigError(
                f"a request of {request.num_prompt_tokens} and {request.num_answer_tokens} tokens "
                f"does not fit the engine, which holds at most {most}: leave it out, or raise "
                "max_model_len or kv_cache_bytes"
            )


def _warm_up(engine: OfflineEngine, num_prompt_tokens: int) -> None:
    """Touches memory, sets up kernels and threads."""
    num_prompt_tokens = min(num_prompt_tokens, engine.max_request_tokens - _WARM_UP_TOKENS)
    engine.add("warm-up", num_prompt_tokens, _WARM_UP_TOKENS)
    num_answered = 0
    while num_answered < _WARM_UP_TOKENS:
        num_answered += len(engine.step()[0])
