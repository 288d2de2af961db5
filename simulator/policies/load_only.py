"""Policies that know no prefixes: what every load balancer ships with.

Round robin; the fewest requests in flight; and the better of two random replicas (Mitzenmacher,
The Power of Two Choices in Randomized Load Balancing, 2001), Ray Serve 2.60's default
(``PowerOfTwoChoicesRequestRouter``).
"""

from collections.abc import Sequence

from app.routing.candidate import Choice, RouteRequest
from engine.seeds import mix64
from simulator.policies.base import Seen, cheapest


def round_robin(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    """``rotation`` counts a gateway's requests."""
    return Choice(seen[request.rotation % len(seen)].candidate)


def least_requests(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    costs = [replica.num_requests for replica in seen]
    return Choice(seen[cheapest(costs, request.rotation)].candidate)


def power_of_two(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    """Both are drawn without replacement; of equal ones the first drawn is taken."""
    draw = mix64(request.rotation)
    first = draw % len(seen)
    # One of the others: drawn from the places after the first, around the end.
    second = (first + 1 + (draw >> 32) % max(1, len(seen) - 1)) % len(seen)
    a, b = seen[first], seen[second]
    return Choice(a.candidate if a.num_requests <= b.num_requests else b.candidate)
