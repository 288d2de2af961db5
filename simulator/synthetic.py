"""Workloads that are made up: equal for equal arguments. Must not know fleets."""

import math
import random
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

from cache_tiers.keys import KEY_BYTES
from engine.messages import ServiceClass
from simulator.errors import SimulationError
from simulator.workload import SimulatedRequest, Workload

_SYSTEM_SKEW = 1.1
"""Exponent of Zipf's law: which system prompt a session begins with."""
_LENGTH_SIGMA = 0.8
"""Of the logarithm of lengths: one in twenty is more than 2.7 times the mean."""
_MAX_OF_MEAN = 20


def poisson(
    *,
    num_requests: int,
    requests_per_s: float,
    num_prompt_tokens: int,
    num_answer_tokens: int,
    num_shared_tokens: int = 0,
    seed: int = 0,
    block_size_tokens: int = 128,
    service_class: ServiceClass = ServiceClass.STANDARD,
) -> Workload:
    """Independent requests of log-normal lengths, behind one system prompt of ``num_shared_tokens``
    if there is one.
    """
    _check(num_requests, requests_per_s)
    draw = random.Random(seed)
    shared = _keys(b"shared", num_shared_tokens // block_size_tokens)
    now_s = 0.0
    requests = []
    for number in range(num_requests):
        now_s += draw.expovariate(requests_per_s)
        length = num_shared_tokens + _length(draw, num_prompt_tokens - num_shared_tokens)
        own = _keys(b"%d" % number, length // block_size_tokens - len(shared))
        requests.append(
            SimulatedRequest(
                f"r{number}",
                now_s,
                length,
                _length(draw, num_answer_tokens),
                [*shared, *own],
                service_class,
            )
        )
    return Workload("poisson", block_size_tokens, tuple(requests))


def chat(
    *,
    num_sessions: int,
    sessions_per_s: float,
    num_turns: int = 15,
    num_system_prompts: int = 8,
    num_system_tokens: int = 2000,
    num_user_tokens: int = 60,
    num_answer_tokens: int = 400,
    max_history_tokens: int = 1920,
    think_s: float = 10.0,
    seed: int = 0,
    block_size_tokens: int = 128,
) -> Workload:
    """Sessions of several turns, each of which sends again what was said before, answers included.

    When that history outgrows its bound, its older half is dropped, as clients do that trim it.
    """
    _check(num_sessions, sessions_per_s)
    draw = random.Random(seed)
    weights = [rank**-_SYSTEM_SKEW for rank in range(1, num_system_prompts + 1)]
    begin_s = 0.0
    requests: list[SimulatedRequest] = []
    for session in range(num_sessions):
        begin_s += draw.expovariate(sessions_per_s)
        system = draw.choices(range(num_system_prompts), weights)[0]
        parts: list[tuple[str, int]] = []
        """Name and tokens of what was said."""
        for turn in range(num_turns):
            parts = _trimmed(parts, max_history_tokens)
            parts.append((f"{session}/{turn}/user", _length(draw, num_user_tokens)))
            num_answer = _length(draw, num_answer_tokens)
            prompt = [(f"system {system}", num_system_tokens), *parts]
            requests.append(
                SimulatedRequest(
                    f"s{session}-{turn}",
                    begin_s,
                    sum(length for _, length in prompt),
                    num_answer,
                    _chained(prompt, block_size_tokens),
                    session=f"s{session}",
                    think_s=draw.expovariate(1 / think_s) if turn else None,
                )
            )
            parts.append((f"{session}/{turn}/answer", num_answer))
    return Workload("chat", block_size_tokens, tuple(requests))


def _chained(parts: Sequence[tuple[str, int]], block_size_tokens: int) -> list[bytes]:
    """Keys of all full blocks of a prompt of these parts: each of what it holds, and of all before
    it.
    """
    ends = list(accumulate(length for _, length in parts))
    keys: list[bytes] = []
    parent = b""
    number = 0
    for end in range(block_size_tokens, ends[-1] + 1, block_size_tokens):
        held = []
        while ends[number] < end:
            held.append(parts[number])
            number += 1
        name, length = parts[number]
        held.append((name, length - (ends[number] - end)))
        parent = blake2b(parent + repr(held).encode(), digest_size=KEY_BYTES).digest()
        keys.append(parent)
    return keys


def _keys(name: bytes, num_blocks: int) -> list[bytes]:
    return [
        blake2b(b"%s/%d" % (name, index), digest_size=KEY_BYTES).digest()
        for index in range(num_blocks)
    ]


def _trimmed(parts: list[tuple[str, int]], max_tokens: int) -> list[tuple[str, int]]:
    """As it is while it fits; else its newest turns, of at most half of it."""
    newest_first = list(accumulate(length for _, length in reversed(parts)))
    if not newest_first or newest_first[-1] <= max_tokens:
        return parts
    num_kept = sum(length <= max_tokens / 2 for length in newest_first)
    return parts[len(parts) - num_kept // 2 * 2 :]


def _length(draw: random.Random, mean: int) -> int:
    """Log-normal with that mean, at least 1."""
    length = draw.lognormvariate(math.log(max(1, mean)) - _LENGTH_SIGMA**2 / 2, _LENGTH_SIGMA)
    return max(1, min(round(length), _MAX_OF_MEAN * max(1, mean)))


def _check(num: int, per_s: float) -> None:
    if num < 1 or not 0 < per_s < math.inf:
        raise SimulationError(f"{num} at {per_s} per second make no workload; both must be above 0")
