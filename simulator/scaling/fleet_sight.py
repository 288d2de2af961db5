"""A simulated fleet as the production autoscaler is shown one. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from autoscaler.observation import (
    Demand,
    ModelObservation,
    ReplicaObservation,
    ServeObservation,
    StartingReplica,
)
from cache_tiers.rung import Rung
from engine.messages import LoadView
from simulator.scaling.view import ScalingSetting

MODEL = "simulated"


class OnTheWay(NamedTuple):
    """Replicas that do not serve yet."""

    starting_s: tuple[float, ...]
    """When each was asked for."""
    num_waking: int
    num_parked: int


def observe_fleet(
    demand: Demand,
    serving: Iterable[tuple[str, LoadView]],
    draining: Iterable[tuple[str, LoadView]],
    on_the_way: OnTheWay,
    setting: ScalingSetting,
    *,
    max_num_seqs: int,
) -> ModelObservation:
    """Who sleeps is one like another."""
    starting_s, num_waking, num_parked = on_the_way
    replicas = [
        ReplicaObservation(name, Rung.SERVING, load=load, max_num_seqs=max_num_seqs)
        for name, load in serving
    ]
    replicas += [
        ReplicaObservation(
            f"asleep{number}",
            Rung.PARKED,
            is_moving=number < num_waking,
            load=LoadView(),
            wake_s=setting.wake_s,
            max_num_seqs=max_num_seqs,
        )
        for number in range(num_waking + num_parked)
    ]
    num_running = len(replicas)
    replicas += [
        ReplicaObservation(
            name, Rung.SERVING, is_draining=True, load=load, max_num_seqs=max_num_seqs
        )
        for name, load in draining
    ]
    serve = ServeObservation(num_running + len(starting_s), num_running, 1, setting.max_replicas)
    starting = tuple(StartingReplica(asked_s) for asked_s in starting_s)
    return ModelObservation(MODEL, demand, tuple(replicas), serve, starting)
