"""Which engine a request should go to, and where the beginning of its prompt comes from: pure
functions of what the gateway knows. No I/O, no clock, no state.

``choose`` takes the cheapest engine. The cost is in seconds: the estimated time to the first token
there, from the cheapest source, and what the request takes from others. Each engine is judged by
itself: a prefix is replicated as soon as the queue at its holders costs more than the transfer.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Literal, NamedTuple

from app.routing.candidate import Candidate, Choice, Policy, RouteRequest
from app.routing.cost import (
    UNKNOWN_PREFILL_TOKENS_PER_S,
    Pace,
    num_sharing,
    others_loss_s,
    pace,
    time_to_first_token_s,
)
from app.routing.prefill import (
    Holder,
    Prefill,
    cheapest_prefill,
    longest_holder,
    longest_lender,
)
from app.routing.unseen import unseen_requests
from engine.seeds import mix64

TIE_S = 0.001
"""Costs this close are equal, and a tie spreads the load."""

STAY_RATIO = 0.05
"""So much cheaper another engine has to be for a request that waits to leave its own."""


def choose(request: RouteRequest, candidates: Sequence[Candidate]) -> Choice:
    """The cheapest candidate. Among equals the current one stays, else the fewest in flight, else
    by ``rotation``; what nobody holds goes where its ``affinity`` says, so that gateways agree.

    Precondition: ``candidates`` is not empty.
    """
    usual_rate = usual_tokens_per_s(candidates)
    paces = [pace(candidate, usual_rate) for candidate in candidates]
    holder = longest_holder(candidates, request.rotation)
    lender = longest_lender(candidates, request.rotation, holder)
    unseen = unseen_requests(request.gateways, candidates)
    at_least = _lower_bounds(request.num_prompt_tokens, paces, holder)
    tolerance = 1.0 if request.current is None else 1.0 + STAY_RATIO
    costs = [math.inf] * len(candidates)
    prefills: dict[int, Prefill] = {}
    least = math.inf
    # The most promising come first: most others can't be as cheap, and need no price.
    for index in sorted(range(len(candidates)), key=at_least.__getitem__):
        if at_least[index] > least * tolerance + TIE_S:
            continue
        candidate = candidates[index]
        prefill = cheapest_prefill(
            request.num_prompt_tokens, candidate, paces[index].token_s, lender
        )
        prefills[index] = prefill
        cost = _cost_s(request, candidate, paces[index], prefill, unseen[index])
        costs[index] = cost
        if cost < least:
            least = cost
    index = _cheapest(request, candidates, costs, holder)
    return Choice(candidates[index], prefills[index].source)


def power_of_two(request: RouteRequest, candidates: Sequence[Candidate]) -> Choice:
    """Of two random candidates the one with fewer in flight, as Ray Serve's default router does:
    what the cost of prefixes and queues is compared with.

    ``rotation`` is the seed. Precondition: ``candidates`` is not empty.
    """
    draw = mix64(request.rotation)
    first = draw % len(candidates)
    # One of the others: drawn from the places after the first, around the end.
    second = (first + 1 + (draw >> 32) % max(1, len(candidates) - 1)) % len(candidates)
    return Choice(min(candidates[first], candidates[second], key=num_sharing))


PolicyName = Literal["least_ttft", "power_of_two"]

POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {"least_ttft": choose, "power_of_two": power_of_two}
)


def cost_s(
    request: RouteRequest,
    candidate: Candidate,
    usual_rate: float = UNKNOWN_PREFILL_TOKENS_PER_S,
    num_unseen: float = 0.0,
) -> float:
    """What ``request`` costs there without a peer's help, with ``num_unseen`` requests of other
    gateways before it, and as many behind it.
    """
    its_pace = pace(candidate, usual_rate)
    prefill = cheapest_prefill(request.num_prompt_tokens, candidate, its_pace.token_s)
    return _cost_s(request, candidate, its_pace, prefill, num_unseen)


class Outlook(NamedTuple):
    """What to expect of a request on one replica."""

    prefill: Prefill
    ttft_s: float
    """From submitting the request there to its first token."""


def outlook(
    num_prompt_tokens: int,
    candidate: Candidate,
    lender: Holder | None = None,
    usual_rate: float = UNKNOWN_PREFILL_TOKENS_PER_S,
) -> Outlook:
    """From what the replica and its node hold, and what ``lender`` does."""
    its_pace = pace(candidate, usual_rate)
    prefill = cheapest_prefill(num_prompt_tokens, candidate, its_pace.token_s, lender)
    time_s = time_to_first_token_s(candidate, its_pace, prefill, num_sharing(candidate))
    return Outlook(prefill, time_s)


def usual_tokens_per_s(candidates: Sequence[Candidate]) -> float:
    """The mean of those that have measured their prefill."""
    rates = [rate for c in candidates if (rate := c.load.prefill_tokens_per_s) > 0]
    return fmean(rates) if rates else UNKNOWN_PREFILL_TOKENS_PER_S


def _lower_bounds(
    num_prompt_tokens: int, paces: Sequence[Pace], holder: Holder | None
) -> list[float]:
    """Of costs: what nobody holds has to be computed anywhere, after what waits there."""
    num_nowhere = max(1.0, num_prompt_tokens - (0.0 if holder is None else holder.num_tokens))
    return [each.wait_s + num_nowhere * each.token_s for each in paces]


def _cost_s(
    request: RouteRequest, candidate: Candidate, pace: Pace, prefill: Prefill, num_unseen: float
) -> float:
    num_there = num_sharing(candidate)
    cost = time_to_first_token_s(candidate, pace, prefill, num_there) + others_loss_s(
        request.num_prompt_tokens, candidate, pace, prefill, num_there
    )
    if num_unseen > 0:
        before_s = request.gateways.uncached_tokens * pace.token_s
        cost += num_unseen * (before_s + prefill.transfer_s + prefill.compute_s)
    # No number is a cost without bound: the comparison is false for NaN, too.
    return min(math.inf, cost)


def _cheapest(
    request: RouteRequest,
    candidates: Sequence[Candidate],
    costs: Sequence[float],
    holder: Holder | None,
) -> int:
    least = min(costs)
    if request.current is not None:
        stay_limit = least * (1 + STAY_RATIO) + TIE_S
        for index, candidate in enumerate(candidates):
            if candidate.engine_id == request.current and costs[index] <= stay_limit:
                return index
    tied = [index for index, cost in enumerate(costs) if cost <= least + TIE_S]
    if len(tied) == 1:
        return tied[0]
    affinity = request.affinity
    if holder is None and affinity is not None:
        # Rendezvous hashing: one place for all gateways, and for most prefixes also when the fleet
        # changes.
        ids = [candidates[index].engine_id for index in tied]
        draws = [mix64(affinity ^ zlib.crc32(engine_id.encode())) for engine_id in ids]
        return tied[draws.index(max(draws))]
    fewest = min(candidates[index].num_in_flight for index in tied)
    equal = [index for index in tied if candidates[index].num_in_flight == fewest]
    return equal[request.rotation % len(equal)]
