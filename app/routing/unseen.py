"""What other gateways have sent that a load view can't show yet. Pure functions.

Were each gateway to take the replica that looks best, all would take the same one until the next
view. So each has a home: its own part of the fleet, whose size follows from how many gateways there
are. A replica outside it costs what its owners are expected to have sent there since its view was
made, and what they will send behind this request before they can see it. At rest, or when views
are fresh, both are next to nothing; when the home is busy, other places are cheaper nevertheless.
"""

from collections.abc import Sequence

from app.routing.candidate import Candidate, Gateways


def unseen_requests(gateways: Gateways, candidates: Sequence[Candidate]) -> list[float]:
    """Of others, as expected on each of ``candidates``."""
    num_replicas = len(candidates)
    if gateways.number < 2 or gateways.requests_per_s <= 0:
        return [0.0] * num_replicas
    by_id = sorted(range(num_replicas), key=lambda index: candidates[index].engine_id)
    # The fleet is a line from 0 to 1, cut evenly into replicas and into homes.
    home_length = 1 / gateways.number
    home_start = (gateways.rank % gateways.number) * home_length
    length = 1 / num_replicas
    unseen = [0.0] * num_replicas
    for place, index in enumerate(by_id):
        start = place * length
        own = min(start + length, home_start + home_length) - max(start, home_start)
        not_own = max(0.0, length - max(0.0, own))
        per_s = gateways.requests_per_s * gateways.number * not_own
        unseen[index] = per_s * candidates[index].age_s
    return unseen
