"""How far what an engine is said to hold is to be believed. Knows engine ids, counts and time only.

Between a choice and the moment the engine looks, blocks are evicted, and an index may be wrong: a
predicted hit is a probability. It is learned from what engines report: of the index keys that were
predicted, the share that was found. Keys, not tokens: what lies between two keys is estimated, and
off by chance. Every report counts the same, so that one long prompt does not decide alone; it
counts less the more follow it, and the longer ago it is, since what went wrong is mended by then.

How old a prefix is and how full the cache plays no part: a cache turns over in minutes, and only
what is then the oldest is lost in the second between a choice and the look.
"""

import math
from dataclasses import dataclass

_TRUST_REPORTS = 4.0
"""The trust that an engine begins with weighs as much as so many predictions that came true."""
_HALF_LIFE_REPORTS = 16.0
"""So many more reports halve the weight of those before."""
_HALF_LIFE_S = 30.0
"""So does so much time."""
_KEPT_PER_REPORT = math.exp2(-1 / _HALF_LIFE_REPORTS)


@dataclass(slots=True, eq=False)
class _Record:
    """Sums over an engine's reports, the older the less."""

    num_reports: float = 0.0
    num_missed: float = 0.0
    """A report of which half was found counts half."""
    learned_s: float = 0.0


class HitDoubt:
    """Engine id to what became of predictions."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def learn(self, engine_id: str, num_predicted: int, num_found: int, now_s: float) -> None:
        """The engine found ``num_found`` keys where ``num_predicted`` were expected.

        More than expected is no reason to believe more: it counts as what was expected.
        """
        if num_predicted <= 0:
            return
        record = self._records.setdefault(engine_id, _Record(learned_s=now_s))
        kept = _KEPT_PER_REPORT * _share_kept_after(now_s - record.learned_s)
        missed = 1 - min(max(num_found, 0), num_predicted) / num_predicted
        record.num_reports = record.num_reports * kept + 1
        record.num_missed = record.num_missed * kept + missed
        record.learned_s = now_s

    def hit_probability(self, engine_id: str, now_s: float) -> float:
        """That the engine finds what it is predicted to hold; above 0, and 1 if nothing is known to
        speak against it.
        """
        record = self._records.get(engine_id)
        if record is None:
            return 1.0
        kept = _share_kept_after(now_s - record.learned_s)
        return 1 - record.num_missed * kept / (record.num_reports * kept + _TRUST_REPORTS)

    def forget(self, engine_id: str) -> None:
        """The engine left."""
        self._records.pop(engine_id, None)


def _share_kept_after(age_s: float) -> float:
    """A clock that went back ages nothing."""
    return math.exp2(-max(0.0, age_s) / _HALF_LIFE_S)
