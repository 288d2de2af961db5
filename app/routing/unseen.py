"""What other gateways have sent that a load view can't show yet. Pure functions.

Were each gateway to take the replica that looks best, all would take the same one until the next
view. So each has a home: its own part of the fleet, whose size follows from how many gateways there
are. A replica outside it costs what its owners are expected to have sent there since its view was
made, and what they will send behind this request before they can see it. At rest, or when views
are fresh, both are next to nothing; when the home is busy, other places are cheaper nevertheless.

Where the homes don't divide evenly into replicas, some lie on a border. Each of its owners prefers
what is wholly its own, so less is sent there than the others' part of it says.
"""

from collections.abc import Sequence
from functools import lru_cache

from app.routing.candidate import Candidate, Gateways

_BORDER_SHARE = 0.5
"""Of what the others' part of a replica on a border says, so much is sent there. With all of it,
such a replica would get three quarters of an even load.
"""
_TINY = 1e-9


def unseen_requests(gateways: Gateways, candidates: Sequence[Candidate]) -> list[float]:
    """Of others, as expected on each of ``candidates``."""
    if gateways.number < 2 or gateways.requests_per_s <= 0:
        return [0.0] * len(candidates)
    per_s = gateways.requests_per_s * gateways.number
    shares = _shares_of_others(
        gateways.rank % gateways.number,
        gateways.number,
        tuple([candidate.engine_id for candidate in candidates]),
    )
    return [
        per_s * share * candidate.age_s for share, candidate in zip(shares, candidates, strict=True)
    ]


@lru_cache(maxsize=64)
def _shares_of_others(
    rank: int, num_gateways: int, engine_ids: tuple[str, ...]
) -> tuple[float, ...]:
    """Of what all gateways send: what others than ``rank`` send to each of ``engine_ids``."""
    num_replicas = len(engine_ids)
    # The fleet is a line from 0 to 1, cut evenly into replicas and into homes.
    home_length = 1 / num_gateways
    home_start = rank * home_length
    length = 1 / num_replicas
    shares = [0.0] * num_replicas
    by_id = sorted(range(num_replicas), key=engine_ids.__getitem__)
    for place, index in enumerate(by_id):
        start = place * length
        own = min(start + length, home_start + home_length) - max(start, home_start)
        others = max(0.0, length - max(0.0, own))
        # A part that rounding made is none.
        is_on_border = _TINY < others / length < 1 - _TINY
        shares[index] = others * _BORDER_SHARE if is_on_border else others
    # What they don't send there they send to their own.
    scale = (1 - home_length) / sum(shares)
    return tuple([share * scale for share in shares])
