"""Tells a figure from nonsense: what is NaN, infinite or negative is unknown, and why is said.

Must not know what the figures are used for.
"""

import math
from dataclasses import dataclass, replace

import msgspec

from autoscaler.observation import Demand, ModelObservation, ReplicaObservation, ServeObservation
from engine.messages import LoadView

_MOST = 1e15
"""No count or time of a fleet is larger; sums of such numbers stay exact enough to compare."""
_LONGEST_S = 86400.0
_LENGTHS = ("prompt_len_p95", "answer_len_p95")


@dataclass(frozen=True, slots=True)
class CleanObservation:
    """One model's, without nonsense."""

    observation: ModelObservation
    faults: tuple[str, ...]
    """What was left out, one line each."""


def clean(observation: ModelObservation) -> CleanObservation:
    """A figure that cannot be makes what it belongs to unknown."""
    faults: list[str] = []
    cleaned = replace(
        observation,
        demand=_clean_demand(observation.demand, faults),
        replicas=tuple(_clean_replica(each, faults) for each in _distinct(observation.replicas)),
        serve=_clean_serve(observation.serve, faults),
        num_nodes_staged=_clean_count(observation, "num_nodes_staged", faults),
        num_nodes_on_disk=_clean_count(observation, "num_nodes_on_disk", faults),
        num_nodes=_clean_count(observation, "num_nodes", faults),
        num_nodes_failed=_clean_count(observation, "num_nodes_failed", faults),
        starting=None
        if observation.starting is None
        else tuple(each for each in observation.starting if math.isfinite(each.asked_s)),
    )
    return CleanObservation(cleaned, tuple(faults))


def is_amount(value: float) -> bool:
    """Finite, not negative, and not absurd."""
    return 0 <= value <= _MOST


def _clean_demand(demand: Demand | None, faults: list[str]) -> Demand | None:
    if demand is None:
        return None
    for name in Demand.__dataclass_fields__:
        value = getattr(demand, name)
        if name not in _LENGTHS and not is_amount(value):
            faults.append(f"{name} is {value}")
            return None
    if demand.period_s == 0:
        faults.append("period_s is 0")
        return None
    if any(not is_amount(getattr(demand, name) or 0.0) for name in _LENGTHS):
        faults.append("a length is no number")
        return replace(demand, prompt_len_p95=None, answer_len_p95=None)
    return demand


def _distinct(replicas: tuple[ReplicaObservation, ...]) -> list[ReplicaObservation]:
    return list({each.engine_id: each for each in replicas}.values())


def _clean_replica(replica: ReplicaObservation, faults: list[str]) -> ReplicaObservation:
    load = replica.load
    if load is not None and not _is_plausible(load):
        faults.append(f"the load of {replica.engine_id} is no number")
        load = None
    wake_s, sleep_s = _time(replica.wake_s), _time(replica.sleep_s)
    if load is replica.load and wake_s == replica.wake_s and sleep_s == replica.sleep_s:
        return replica
    return replace(replica, load=load, wake_s=wake_s, sleep_s=sleep_s)


def _time(time_s: float) -> float:
    return time_s if 0 <= time_s <= _LONGEST_S else 0.0


def _is_plausible(load: LoadView) -> bool:
    figures = msgspec.structs.astuple(load)
    return is_amount(sum(figures)) and min(figures) >= 0  # a sum with a NaN in it is NaN


def _clean_count(observation: ModelObservation, name: str, faults: list[str]) -> int | None:
    count: int | None = getattr(observation, name)
    if count is None or is_amount(count):
        return count
    faults.append(f"{name} is {count}")
    return None


def _clean_serve(serve: ServeObservation | None, faults: list[str]) -> ServeObservation | None:
    if serve is None:
        return None
    counts = (serve.target_num_replicas, serve.num_running, serve.min_replicas, serve.max_replicas)
    if all(is_amount(count) for count in counts):
        return serve
    faults.append(f"Serve's counts are {counts}")
    return None
