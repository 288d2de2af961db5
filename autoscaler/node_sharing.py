"""Who is awake where replicas of several models share the accelerators of their nodes. No I/O.

A sleeper is told to wake only when those that are awake on its node, or move, leave it room. Where
they don't, whoever is missed less is told to sleep first, and the wake follows once it is seen
asleep: one planner sees and orders all of them, so that no lease is needed. Must not know why
models want their sizes.

    room on a node = its accelerators - taken (awake, moving, told to) - promised to a sleeper
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from autoscaler.observation import ReplicaObservation
from autoscaler.sharer import NodeRoom, Sharer, SharerRound, is_up
from cache_tiers.rung import Rung

LEAST_AWAKE_S = 60.0
"""And twice the time to wake: nobody who is wanted gives way sooner."""
_LATE_S = 5.0
"""An order to wake that was taken back since may still arrive."""


class NodeSharing:
    """Owner of how long each replica has been awake."""

    def __init__(self) -> None:
        self._awake_s: dict[str, float] = {}
        """Since when."""
        self._told_s: dict[str, float] = {}
        """When each that stays was told to be so last."""
        self._served_s: dict[str, float] = {}
        """When each model last had somebody awake."""

    def assign(
        self,
        now_s: float,
        sharers: Sequence[Sharer],
        others: Iterable[ReplicaObservation],
        devices_per_node: int,
    ) -> list[dict[str, Rung]]:
        """Orders, in the order of ``sharers``. ``others``: of models that nobody plans."""
        taking = [self._taking(now_s, each) for each in sharers]
        self._observe(now_s, sharers, taking)
        nodes = NodeRoom(devices_per_node)
        for replica in others:
            if is_up(replica):
                nodes.take(replica.node_id, 1)
        models = [
            SharerRound(sharer, up, nodes) for sharer, up in zip(sharers, taking, strict=True)
        ]
        acting = [each for each in models if not each.sharer.is_held]
        self._make_fit(acting, nodes)
        missing = {each.name: each for each in acting if each.is_short}
        while missing:
            model = max(
                missing.values(), key=lambda each: (each.need, -self._served(each), each.name)
            )
            has_more = model.wake() or self._make_room(now_s, model, acting, nodes)
            if not has_more or not model.is_short:
                del missing[model.name]
        for model in acting:
            self._told_s |= dict.fromkeys(model.awake, now_s)
        return [each.rungs for each in models]

    def _taking(self, now_s: float, sharer: Sharer) -> frozenset[str]:
        """Engines of a model that take accelerators, or may before it is seen."""
        return frozenset(
            replica.engine_id
            for replica in sharer.replicas
            if is_up(replica) or (not replica.is_draining and self._is_told(now_s, sharer, replica))
        )

    def _is_told(self, now_s: float, sharer: Sharer, replica: ReplicaObservation) -> bool:
        told_s = self._told_s.get(replica.engine_id, -math.inf)
        return sharer.orders.get(replica.engine_id) is Rung.SERVING or now_s - told_s < _LATE_S

    def _observe(
        self, now_s: float, sharers: Sequence[Sharer], taking: Sequence[frozenset[str]]
    ) -> None:
        there = {each.engine_id for sharer in sharers for each in sharer.replicas}
        self._told_s = {each: at for each, at in self._told_s.items() if each in there}
        before = self._awake_s
        self._awake_s = {each: before.get(each, now_s) for up in taking for each in up}
        served = {
            sharer.config.name
            for sharer in sharers
            if any(each.rung is Rung.SERVING and not each.is_draining for each in sharer.replicas)
        }
        kept = {sharer.config.name: -math.inf for sharer in sharers}
        kept |= {name: at for name, at in self._served_s.items() if name in kept}
        self._served_s = kept | dict.fromkeys(served, now_s)

    def _served(self, model: SharerRound) -> float:
        return self._served_s[model.name]

    def _make_fit(self, acting: Sequence[SharerRound], nodes: NodeRoom) -> None:
        """Where more are awake than there is room for, such as one that just started."""
        for node_id in nodes.overfull():
            while nodes.room_to_be(node_id) < 0:
                victims = [
                    (model.need_without(1), -self._since_s(each), each.engine_id, model)
                    for model in acting
                    for each in model.awake_on(node_id)
                ]
                if not victims:
                    break
                _, _, engine_id, model = min(victims, key=lambda each: each[:3])
                model.put_to_sleep(engine_id)

    def _make_room(
        self, now_s: float, model: SharerRound, acting: Sequence[SharerRound], nodes: NodeRoom
    ) -> bool:
        """Promise a sleeper the room of those who leave, or who can be told to."""
        for sleeper in model.sleepers:
            victims = self._victims(now_s, model, sleeper.node_id, acting, nodes)
            if victims is not None:
                for other, engine_id in victims:
                    other.put_to_sleep(engine_id)
                model.promise(sleeper)
                return True
        return False

    def _victims(
        self,
        now_s: float,
        model: SharerRound,
        node_id: str,
        acting: Sequence[SharerRound],
        nodes: NodeRoom,
    ) -> list[tuple[SharerRound, str]] | None:
        """Who has to sleep on a node before one more of ``model`` can wake; None: it can't."""
        room = nodes.room_to_be(node_id)
        may_go = {
            other.name: sorted(
                (self._since_s(each), each.engine_id)
                for each in other.awake_on(node_id)
                if self._may_go(now_s, other, each)
            )
            for other in acting
            if other is not model
        }
        by_name = {each.name: each for each in acting}
        chosen: list[tuple[SharerRound, str]] = []
        num_chosen = Counter[str]()
        while room < model.num_devices:
            needs = [
                (by_name[name].need_without(num_chosen[name] + 1), name)
                for name, left in may_go.items()
                if left
            ]
            if not needs or min(needs)[0] >= model.need:
                return None
            name = min(needs)[1]
            chosen.append((by_name[name], may_go[name].pop(0)[1]))
            num_chosen[name] += 1
            room += by_name[name].num_devices
        return chosen

    def _since_s(self, replica: ReplicaObservation) -> float:
        # Whoever was told to wake in this round is the newest.
        return self._awake_s.get(replica.engine_id, math.inf)

    def _may_go(self, now_s: float, model: SharerRound, replica: ReplicaObservation) -> bool:
        least_s = max(LEAST_AWAKE_S, 2 * model.sharer.wake_s)
        return now_s - self._since_s(replica) >= least_s
