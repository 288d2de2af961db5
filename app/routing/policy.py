"""Which engine a request should go to: pure functions of what the gateway knows. No I/O, no clock,
no state.

``choose`` takes the cheapest engine. The cost is the estimated time to the first token there: the
prefill work before and of this request, which a cached prefix shortens, and the wait for a place if
all are taken; and what the request takes from others: a step for each sequence that shares the
steps, and the KV that has to be freed for it.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from app.routing.candidate import Candidate, Choice, Policy, RouteRequest
from engine.messages import LoadView
from engine.seeds import mix64

UNKNOWN_PREFILL_TOKENS_PER_S = 1000.0
"""Until an engine has measured its own, or others have: it only weighs prefill against steps."""

MEAN_ANSWER_S = 10.0
"""How long an answer keeps its place, until the engine has measured it: 400 tokens at 25 ms."""

TIE_RATIO = 0.05
TIE_S = 0.001
"""Costs this close are equal: estimates are no better, and a tie spreads the load."""


def choose(request: RouteRequest, candidates: Sequence[Candidate]) -> Choice:
    """The cheapest candidate. Among equals the current one stays, else the fewest in flight, else
    by ``rotation``.

    Precondition: ``candidates`` is not empty.
    """
    usual = usual_tokens_per_s(candidates)
    costs = [cost_s(request.num_prompt_tokens, candidate, usual) for candidate in candidates]
    limit = min(costs) * (1 + TIE_RATIO) + TIE_S
    tied = [candidate for candidate, cost in zip(candidates, costs, strict=True) if cost <= limit]
    for candidate in tied:
        if candidate.engine_id == request.current:
            return Choice(candidate)
    fewest = min(candidate.num_in_flight for candidate in tied)
    equal = [candidate for candidate in tied if candidate.num_in_flight == fewest]
    return Choice(equal[request.rotation % len(equal)])


def power_of_two(request: RouteRequest, candidates: Sequence[Candidate]) -> Choice:
    """Of two random candidates the one with fewer in flight, as Ray Serve's default router does:
    what the cost of prefixes and queues is compared with.

    ``rotation`` is the seed. Precondition: ``candidates`` is not empty.
    """
    draw = mix64(request.rotation)
    first = draw % len(candidates)
    # One of the others: drawn from the places after the first, around the end.
    second = (first + 1 + (draw >> 32) % max(1, len(candidates) - 1)) % len(candidates)
    return Choice(min(candidates[first], candidates[second], key=_num_sharing))


PolicyName = Literal["least_ttft", "power_of_two"]

POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {"least_ttft": choose, "power_of_two": power_of_two}
)


def usual_tokens_per_s(candidates: Sequence[Candidate]) -> float:
    """The mean of those that have measured their prefill."""
    rates = [c.load.prefill_tokens_per_s for c in candidates if c.load.prefill_tokens_per_s > 0]
    return fmean(rates) if rates else UNKNOWN_PREFILL_TOKENS_PER_S


def cost_s(
    num_prompt_tokens: int,
    candidate: Candidate,
    usual_rate: float = UNKNOWN_PREFILL_TOKENS_PER_S,
) -> float:
    """What the request costs there: the time to its first token, and what it takes from others.

    ``usual_rate``: prefill tokens/s of an engine that has not measured its own yet. A slow guess
    would keep requests away from it for ever, and so it would never be measured.
    """
    load = candidate.load
    rate = load.prefill_tokens_per_s or usual_rate
    num_free_tokens = load.num_free_blocks * candidate.block_size_tokens
    is_measured = load.num_blocks > 0
    # KV that has to be freed first was somebody's work; it is about as much to be done again.
    num_uncached = _num_uncached(num_prompt_tokens, candidate)
    num_missing = max(0, num_uncached - num_free_tokens) if is_measured else 0
    return (
        ttft_s(num_prompt_tokens, candidate, usual_rate)
        + num_missing / rate
        + _num_sharing(candidate) * load.step_time_s
    )


def ttft_s(
    num_prompt_tokens: int,
    candidate: Candidate,
    usual_rate: float = UNKNOWN_PREFILL_TOKENS_PER_S,
) -> float:
    """Estimated seconds from submitting the request there to its first token."""
    load = candidate.load
    rate = load.prefill_tokens_per_s or usual_rate
    # Of prompts that wait, in the engine or before it, nobody has looked what is cached.
    num_unlooked = min(load.num_waiting_tokens, load.pending_prefill_tokens)
    num_looked = load.pending_prefill_tokens - num_unlooked + candidate.num_unseen_tokens
    num_waiting = (num_unlooked + candidate.num_queued_tokens) * _uncached_share(load)
    num_tokens = num_looked + num_waiting + _num_uncached(num_prompt_tokens, candidate)
    num_sharing = _num_sharing(candidate)
    # It comes amid a step, if there is one, and no step is shorter for having few tokens.
    rest_of_step_s = load.step_time_s / 2 if num_sharing else 0.0
    return (
        rest_of_step_s
        + max(load.step_time_s, num_tokens / rate)
        + _place_wait_s(num_sharing, candidate.max_num_seqs, load.mean_answer_s or MEAN_ANSWER_S)
    )


def _num_uncached(num_prompt_tokens: int, candidate: Candidate) -> int:
    # The last prompt token is always computed, or there would be nothing to sample from.
    return max(1, num_prompt_tokens - candidate.num_cached_tokens)


def _uncached_share(load: LoadView) -> float:
    """Of the prompts that the engine has admitted so far."""
    if load.num_prompt_tokens <= 0:
        return 1.0
    return max(0.0, 1 - load.num_cached_prompt_tokens / load.num_prompt_tokens)


def _num_sharing(candidate: Candidate) -> int:
    """Samples that are there or on their way."""
    load = candidate.load
    # A view may be older than the submits before it: there are at least this gateway's own.
    return max(load.num_running + load.num_waiting + candidate.num_unseen, candidate.num_in_flight)


def _place_wait_s(num_before: int, max_num_seqs: int, mean_answer_s: float) -> float:
    """Little's law: of full places one becomes free every ``mean_answer_s / max_num_seqs``."""
    if max_num_seqs == 0:
        return 0.0
    return max(0, num_before + 1 - max_num_seqs) * mean_answer_s / max_num_seqs
