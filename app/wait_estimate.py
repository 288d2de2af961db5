"""How long a queue takes to drain while a replica is on its way: a pure function."""

import math

_LONGEST_S = 1e9
"""Whatever the rate is said to be."""


def drain_s(
    num_jobs: float, rate_per_s: float | None, *, num_engines: int, next_ready_s: float | None
) -> float:
    """Until ``num_jobs`` have left at ``rate_per_s``, which ``num_engines`` make together, and with
    one of these more from ``next_ready_s`` on (None: none comes). 0 if nothing tells.

    Never negative, nor NaN, whatever it is given.
    """
    if rate_per_s is None or not rate_per_s > 0 or not 0 < num_jobs < math.inf:
        return 0.0
    alone_s = min(num_jobs / rate_per_s, _LONGEST_S)
    if next_ready_s is None or not 0 <= next_ready_s < alone_s or num_engines < 1:
        return alone_s
    num_left = num_jobs - rate_per_s * next_ready_s
    faster = rate_per_s * (num_engines + 1) / num_engines
    return min(alone_s, next_ready_s + max(0.0, num_left) / faster)
