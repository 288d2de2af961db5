"""One model among those that share nodes, and one round's accounts of what is taken on them. Pure.

Must not know who gives way to whom.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.config import ModelScalingConfig
from autoscaler.ladder import rank
from autoscaler.observation import ReplicaObservation
from cache_tiers.rung import Rung


@dataclass(frozen=True, slots=True)
class Sharer:
    """What one model wants, of what it has."""

    config: ModelScalingConfig
    num_serving: int
    minimum: int
    """Of ``num_serving``."""
    is_asked: bool
    """Requests came or wait."""
    wake_s: float
    replicas: tuple[ReplicaObservation, ...]
    orders: Mapping[str, Rung]
    """The last ones."""
    is_held: bool
    """Gets no orders; what it has awake stays so."""


class Need(NamedTuple):
    """How much a model misses one replica more, or would miss one less; larger is more."""

    is_below_minimum: bool
    missing: float
    """Share of what it wants, weighed by what being late costs."""
    is_starved: bool = False
    """Requests wait and nobody serves: whoever is served as much as that gives way in turn."""


class NodeRoom:
    """Owner of one round's accounts of accelerators."""

    def __init__(self, devices_per_node: int) -> None:
        self._num_devices = devices_per_node
        self._taken: Counter[str] = Counter()
        self._leaving: Counter[str] = Counter()
        """Of those taken."""
        self._promised: Counter[str] = Counter()

    def take(self, node_id: str, num: int) -> None:
        self._taken[node_id] += num

    def leave(self, node_id: str, num: int) -> None:
        self._leaving[node_id] += num

    def promise(self, node_id: str, num: int) -> None:
        self._promised[node_id] += num

    def room(self, node_id: str) -> int:
        """Now; negative where more are awake than fit, or more is promised."""
        return self._num_devices - self._taken[node_id] - self._promised[node_id]

    def room_to_be(self, node_id: str) -> int:
        """When all are gone that leave."""
        return self.room(node_id) + self._leaving[node_id]

    def overfull(self) -> list[str]:
        return sorted(node_id for node_id in self._taken if self.room_to_be(node_id) < 0)


class SharerRound:
    """One model's orders while they are made."""

    def __init__(self, sharer: Sharer, taking: frozenset[str], nodes: NodeRoom) -> None:
        self.sharer = sharer
        self.name = sharer.config.name
        self.num_devices = sharer.config.devices_per_replica
        self.rungs: dict[str, Rung] = {}
        self.sleepers: list[ReplicaObservation] = []
        """The first to wake first."""
        self.awake: dict[str, ReplicaObservation] = {}
        self._taking = taking
        self._num_promised = 0
        self._nodes = nodes
        for replica in sharer.replicas:
            if replica.engine_id in taking:
                nodes.take(replica.node_id, self.num_devices)
                if replica.is_draining:
                    nodes.leave(replica.node_id, self.num_devices)
        if not sharer.is_held:
            for replica in rank(sharer.replicas, sharer.orders):
                self._place(replica)

    @property
    def is_short(self) -> bool:
        return self._num_awake < self.sharer.num_serving

    @property
    def need(self) -> Need:
        """Of one more."""
        num = self._num_awake
        return self._need_of(num)._replace(is_starved=num == 0 and self.sharer.is_asked)

    def need_without(self, num: int) -> Need:
        """Of one more, if so many of those awake slept."""
        return self._need_of(self._num_awake - num)

    @property
    def _num_awake(self) -> int:
        return len(self.awake) + self._num_promised

    def awake_on(self, node_id: str) -> list[ReplicaObservation]:
        """Those whose sleep would make room."""
        if self.num_devices == 0:
            return []
        return [each for each in self.awake.values() if each.node_id == node_id]

    def wake(self) -> bool:
        """One for which there is room now."""
        for replica in self.sleepers:
            if self._nodes.room(replica.node_id) >= self.num_devices or self.num_devices == 0:
                self.sleepers.remove(replica)
                self._nodes.take(replica.node_id, self.num_devices)
                self._keep(replica)
                return True
        return False

    def promise(self, sleeper: ReplicaObservation) -> None:
        """The next room on its node."""
        self.sleepers.remove(sleeper)
        self._nodes.promise(sleeper.node_id, self.num_devices)
        self._num_promised += 1

    def put_to_sleep(self, engine_id: str) -> None:
        self._let_go(self.awake.pop(engine_id))

    def _place(self, replica: ReplicaObservation) -> None:
        if replica.engine_id not in self._taking:
            self.rungs[replica.engine_id] = Rung.PARKED
            self.sleepers.append(replica)
        elif self.is_short:
            self._keep(replica)
        else:
            self._let_go(replica)

    def _keep(self, replica: ReplicaObservation) -> None:
        self.rungs[replica.engine_id] = Rung.SERVING
        self.awake[replica.engine_id] = replica

    def _let_go(self, replica: ReplicaObservation) -> None:
        self.rungs[replica.engine_id] = Rung.PARKED
        self._nodes.leave(replica.node_id, self.num_devices)

    def _need_of(self, num_awake: int) -> Need:
        wanted = self.sharer.num_serving
        missing = max(0, wanted - num_awake) / wanted if wanted else 0.0
        value = self.sharer.config.late_cost * missing / max(1, self.num_devices)
        return Need(num_awake < min(self.sharer.minimum, wanted), value)


def is_up(replica: ReplicaObservation) -> bool:
    return replica.rung is Rung.SERVING or replica.is_moving
