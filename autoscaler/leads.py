"""How long promotions take: measured, and from that when those under way will be done.

A promotion counts from the decision to the moment when the router counts the replica: what Serve,
the scheduler of the cluster, loading and seeding take is all in it. Reads no clock.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoscaler.ladder import NO_WARM_NODES, WarmNodes
from autoscaler.observation import ReplicaObservation, StartingReplica
from cache_tiers.rung import Rung

_QUANTILE = 0.9
_NUM_KEPT = 20
_NUM_TRUSTED = 5
"""From so many measurements on the prior no longer counts as one."""
_OVERDUE = 1.5
"""Times its lead: later, a promotion has failed and is repeated, or waits for a node."""
_NUM_JUDGED = 5
_FORGOTTEN_S = 3600.0
_LEAST_S = 0.5
_LONGEST_S = 86400.0


class Leads:
    """Owner of the measured times of one model."""

    def __init__(self) -> None:
        self._measured: dict[Rung, deque[float]] = {}

    def record(self, rung: Rung, time_s: float) -> None:
        """A promotion from ``rung`` to SERVING took ``time_s``; more than a day is no time."""
        if are_times((time_s,)):
            self._measured.setdefault(rung, deque(maxlen=_NUM_KEPT)).append(time_s)

    def measured(self, rung: Rung) -> tuple[float, ...]:
        """The last twenty, oldest first."""
        return tuple(self._measured.get(rung, ()))

    def lead_s(self, rung: Rung, prior_s: float) -> float:
        """What nine of ten promotions from ``rung`` take at most."""
        return usual_s(self._measured.get(rung, ()), prior_s)


def usual_s(measured_s: Iterable[float], prior_s: float) -> float:
    """What nine of ten take at most; the prior counts until enough were measured."""
    known = sorted(measured_s)
    if len(known) < _NUM_TRUSTED:
        known = sorted([*known, prior_s])
    at = _QUANTILE * (len(known) - 1)
    low = int(at)
    high = min(low + 1, len(known) - 1)
    return max(_LEAST_S, known[low] + (at - low) * (known[high] - known[low]))


def are_times(times_s: Iterable[float]) -> bool:
    """None is negative, longer than a day or no number."""
    return all(0 <= time_s <= _LONGEST_S for time_s in times_s)


@dataclass(slots=True)
class Promotion:
    """One that is under way."""

    asked_s: float
    rung: Rung
    """On which it begins, as far as that can be known before it is there."""
    is_timed: bool = True
    """False: it was under way already when this planner began to look."""


class Starts:
    """Owner of what is known of the replicas that are asked for and not there."""

    def __init__(self) -> None:
        self.under_way: list[Promotion] = []
        """Oldest first."""
        self._were_colder: deque[bool] = deque(maxlen=_NUM_JUDGED)
        """Whether the last ones began below where nodes held the weights."""
        self._seen_s: dict[str, float] = {}
        """When each engine that the router counts, or counted lately, was there last."""
        self._has_begun = False

    def update(
        self,
        now_s: float,
        replicas: tuple[ReplicaObservation, ...],
        num_wanted: int,
        starting: tuple[StartingReplica, ...] | None,
        leads: Leads,
        warm: WarmNodes = NO_WARM_NODES,
    ) -> None:
        """``num_wanted``: replicas that Serve was asked for, those on the way out not among them;
        ``warm``: where those that are new among them begin. Times of ``starting`` are on the
        planner's clock."""
        there = [each for each in replicas if _is_there(each)]
        for replica in there:
            if self._seen_s.get(replica.engine_id) is None and self._has_begun and self.under_way:
                rung = min(replica.started_from, Rung.STAGED)
                promotion = self._take(rung)
                self._were_colder.append(rung < promotion.rung)
                if promotion.is_timed:
                    leads.record(rung, now_s - promotion.asked_s)
            self._seen_s[replica.engine_id] = now_s
        for engine_id in [key for key, at in self._seen_s.items() if now_s - at > _FORGOTTEN_S]:
            del self._seen_s[engine_id]
        if starting is not None:
            known = sorted(starting, key=lambda each: each.asked_s)
            self.under_way = [Promotion(min(now_s, each.asked_s), each.rung) for each in known]
        else:
            num_missing = max(0, num_wanted - sum(not r.is_draining for r in there))
            self._count(now_s, num_missing, warm)
        self._has_begun = True

    @property
    def are_colder(self) -> bool:
        """Most begin below where nodes hold the weights: they are placed on other nodes."""
        return sum(self._were_colder) > _NUM_JUDGED // 2

    def _take(self, rung: Rung) -> Promotion:
        """The one that has ended: of those that were believed to begin there, the oldest."""
        found = next((each for each in self.under_way if each.rung is rung), self.under_way[0])
        self.under_way.remove(found)
        return found

    def _count(self, now_s: float, num_missing: int, warm: WarmNodes) -> None:
        # The newest are given up first: so does Serve.
        del self.under_way[num_missing:]
        num_before = len(self.under_way)
        for number in range(1, num_missing - num_before + 1):
            rung = warm.start_rung(number)
            self.under_way.append(Promotion(now_s, rung, is_timed=self._has_begun))

    def etas_s(self, now_s: float, leads_s: Mapping[Rung, float]) -> list[float]:
        """From now, of each that is under way. One that is overdue starts from the beginning in
        this count: it is on its way again, or stands in a queue of the cluster."""
        etas = []
        for promotion in self.under_way:
            lead_s = leads_s.get(promotion.rung, _LEAST_S)
            age_s = now_s - promotion.asked_s
            etas.append(lead_s if age_s > _OVERDUE * lead_s else max(0.0, lead_s - age_s))
        return etas


class Wakes:
    """Owner of what is known of the replicas that were told to wake."""

    def __init__(self) -> None:
        self._asked_s: dict[str, float] = {}

    def update(self, now_s: float, replicas: tuple[ReplicaObservation, ...], leads: Leads) -> None:
        """Those that serve by now are measured; those that are gone are forgotten."""
        by_id = {each.engine_id: each for each in replicas}
        for engine_id, asked_s in list(self._asked_s.items()):
            replica = by_id.get(engine_id)
            if replica is None or replica.is_draining:
                del self._asked_s[engine_id]
            elif replica.rung is Rung.SERVING and not replica.is_moving and replica.is_seeded:
                leads.record(Rung.PARKED, now_s - asked_s)
                del self._asked_s[engine_id]

    def order(
        self, now_s: float, replicas: tuple[ReplicaObservation, ...], rungs: dict[str, Rung]
    ) -> None:
        """What a plan says goes out now."""
        for replica in replicas:
            wanted = rungs.get(replica.engine_id)
            if wanted is Rung.SERVING and replica.rung is Rung.PARKED:
                self._asked_s.setdefault(replica.engine_id, now_s)
            elif wanted is Rung.PARKED:
                self._asked_s.pop(replica.engine_id, None)

    def etas_s(self, now_s: float, lead_s: float) -> list[float]:
        """From now, of each that was told to wake; one that is overdue counts as told just now."""
        ages = [now_s - asked_s for asked_s in self._asked_s.values()]
        return [lead_s if age > _OVERDUE * lead_s else max(0.0, lead_s - age) for age in ages]


def _is_there(replica: ReplicaObservation) -> bool:
    return replica.rung >= Rung.PARKED and replica.is_seeded
