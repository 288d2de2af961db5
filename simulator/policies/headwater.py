"""Our own policy behind the interface of the published ones: production code, and nothing else."""

from collections.abc import Sequence

from app.routing.candidate import Choice, RouteRequest
from app.routing.policy import choose
from simulator.policies.base import Seen


def headwater(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    return choose(request, [replica.candidate for replica in seen])
