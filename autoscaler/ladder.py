"""The warm ladder: how sure each rung has to be of having enough, and who sleeps. Pure.

Newsvendor: a replica more pays as long as the probability that it is missed, times what a missing
second costs, exceeds the rest, times what it costs idle. Rungs nest. A replica more that serves,
out of those that are there, costs what being awake costs over being asleep; one more that is there
costs what being asleep costs; a node more that holds weights, what that costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.config import ModelScalingConfig
from autoscaler.observation import ReplicaObservation
from cache_tiers.rung import Rung

_LEAST_RATIO, _MOST_RATIO = 0.5, 0.999
"""Beyond, quantiles are guesses."""


def critical_ratio(late_cost: float, idle_cost: float) -> float:
    """The probability of having enough at which one more neither gains nor loses."""
    return min(_MOST_RATIO, max(_LEAST_RATIO, late_cost / (late_cost + idle_cost)))


def may_sleep(config: ModelScalingConfig) -> bool:
    """Spare replicas sleep: it is allowed, and saves something."""
    return config.max_parked != 0 and config.parked_cost < 1


def serving_ratio(config: ModelScalingConfig) -> float:
    """Of those that serve."""
    saved = 1 - config.parked_cost if may_sleep(config) else 1.0
    return critical_ratio(config.late_cost, saved)


def total_ratio(config: ModelScalingConfig) -> float:
    """Of those that serve or sleep."""
    cost = config.parked_cost if may_sleep(config) else 1.0
    return critical_ratio(config.late_cost, cost)


@dataclass(frozen=True, slots=True)
class WarmNodes:
    """Nodes with room for a replica that hold the weights, each as often as replicas fit. What is
    unknown counts as none: then the longest lead holds."""

    num_staged: int = 0
    num_on_disk: int = 0

    def start_rung(self, num_more: int) -> Rung:
        """On which the last of so many more replicas begins; of none, the next one."""
        if max(1, num_more) <= self.num_staged:
            return Rung.STAGED
        if max(1, num_more) <= self.num_staged + self.num_on_disk:
            return Rung.ON_DISK
        return Rung.COLD


NO_WARM_NODES = WarmNodes()


def assign_rungs(
    replicas: tuple[ReplicaObservation, ...], num_serving: int, orders: Mapping[str, Rung]
) -> dict[str, Rung]:
    """Who serves and who sleeps, of those that stay. ``orders``: the last ones."""
    return {
        each.engine_id: Rung.SERVING if at < num_serving else Rung.PARKED
        for at, each in enumerate(rank(replicas, orders))
    }


def rank(
    replicas: tuple[ReplicaObservation, ...], orders: Mapping[str, Rung]
) -> list[ReplicaObservation]:
    """Those that stay, who should rather serve first.

    Those that serve go on, the busiest first; then those on their way up, then sleepers that wake
    soonest. So the emptiest go to sleep, and a sleeper wakes for one that Serve stopped.
    """
    staying = [each for each in replicas if not each.is_draining and each.rung >= Rung.PARKED]
    return sorted(staying, key=lambda each: _order(each, orders.get(each.engine_id)))


def _order(replica: ReplicaObservation, order: Rung | None) -> tuple[int, float, str]:
    is_up = replica.rung is Rung.SERVING
    if order is Rung.PARKED or (order is None and not is_up):
        return (4 if is_up or replica.is_moving else 3), replica.wake_s, replica.engine_id
    if not is_up:
        return 1, replica.wake_s, replica.engine_id
    load = replica.load
    busy = 0.0 if load is None else float(load.num_running + load.num_waiting)
    return (0 if replica.is_seeded and load is not None else 2), -busy, replica.engine_id
