"""Models that share the accelerators of their nodes: never more awake than fit, and all in turn."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.config import AutoscalerConfig, CapacityConfig, ModelScalingConfig
from autoscaler.node_sharing import LEAST_AWAKE_S, NodeSharing
from autoscaler.observation import (
    FleetObservation,
    ModelObservation,
    ReplicaObservation,
    ServeObservation,
)
from autoscaler.policy import PlannerState, decide
from autoscaler.sharer import Sharer
from cache_tiers.rung import Rung
from tests.unit.autoscaler.fleets import NOON_S, make_demand, make_replica

WAKE_S = 2.0
MOVE_S = 3
"""Ticks that a replica moves."""


@dataclass(slots=True)
class Engine:
    """Does what it was told last, and takes a while."""

    node_id: str
    rung: Rung = Rung.PARKED
    order: Rung = Rung.PARKED
    left_s: int = 0
    move_s: int = MOVE_S

    @property
    def is_up(self) -> bool:
        return self.rung is Rung.SERVING or self.left_s > 0

    def tick(self) -> None:
        if self.left_s == 0 and self.order is not self.rung:
            self.left_s = self.move_s
        elif self.left_s > 0:
            self.left_s -= 1
            if self.left_s == 0:
                self.rung = self.order


@dataclass(slots=True)
class Wanted:
    """One model's wish, and its engines by id."""

    engines: dict[str, Engine]
    num_serving: int
    config: ModelScalingConfig = field(default_factory=lambda: ModelScalingConfig(name="?"))
    minimum: int = 0
    is_asked: bool = False
    is_held: bool = False
    orders: dict[str, Rung] = field(default_factory=dict)

    @property
    def num_serving_now(self) -> int:
        return sum(each.rung is Rung.SERVING for each in self.engines.values())


class Nodes:
    """A fleet under `NodeSharing`; a tick is a second."""

    def __init__(self, devices_per_node: int, **models: Wanted) -> None:
        self.num_devices = devices_per_node
        self.models = models
        for name, model in models.items():
            model.config = model.config.model_copy(update={"name": name})
        self.sharing = NodeSharing()
        self.others: tuple[ReplicaObservation, ...] = ()
        self.now_s = 0.0
        self.num_wakes = 0
        self._late: list[list[tuple[str, Mapping[str, Rung]]]] = []

    def tick(self, *, delay: int = 0) -> None:
        """``delay``: of this round's orders, in rounds; those of an earlier one come first."""
        self.now_s += 1
        rounds = self.sharing.assign(
            self.now_s,
            [self._sharer(each) for each in self.models.values()],
            self.others,
            self.num_devices,
        )
        sent: list[tuple[str, Mapping[str, Rung]]] = []
        for (name, model), rungs in zip(self.models.items(), rounds, strict=True):
            if not model.is_held:
                woken = {key for key, rung in rungs.items() if rung is Rung.SERVING}
                asleep = {key for key, each in model.engines.items() if not each.is_up}
                told = {key for key, rung in model.orders.items() if rung is Rung.SERVING}
                self.num_wakes += len((woken & asleep) - told)
                model.orders = rungs
                sent.append((name, rungs))
        self._late.append(sent)
        self._deliver(delay)
        for model in self.models.values():
            for engine in model.engines.values():
                engine.tick()

    def restart(self) -> None:
        """Of the planner, which forgets who was told what; what was sent arrives before."""
        self._deliver(0)
        self.sharing = NodeSharing()
        for model in self.models.values():
            model.orders = {}
            for engine in model.engines.values():
                engine.tick()

    def _deliver(self, most_late: int) -> None:
        while len(self._late) > most_late:
            for name, rungs in self._late.pop(0):
                for key, rung in rungs.items():
                    self.models[name].engines[key].order = rung

    def run(self, num: int) -> None:
        for _ in range(num):
            self.tick()
            assert self.is_within()

    def is_within(self) -> bool:
        return all(num <= self.num_devices for num in self.taken().values())

    def taken(self) -> Counter[str]:
        taken: Counter[str] = Counter(each.node_id for each in self.others)
        for model in self.models.values():
            for engine in model.engines.values():
                taken[engine.node_id] += model.config.devices_per_replica * engine.is_up
        return taken

    def _sharer(self, model: Wanted) -> Sharer:
        seen = tuple(
            make_replica(key, each.rung, node_id=each.node_id, is_moving=each.left_s > 0)
            for key, each in model.engines.items()
        )
        return Sharer(
            model.config,
            model.num_serving,
            model.minimum,
            model.is_asked,
            WAKE_S,
            seen,
            model.orders,
            model.is_held,
        )


def asleep(prefix: str, *nodes: str) -> dict[str, Engine]:
    return {f"{prefix}{at}": Engine(node_id) for at, node_id in enumerate(nodes)}


def awake(prefix: str, *nodes: str) -> dict[str, Engine]:
    up = Engine("", Rung.SERVING, Rung.SERVING)
    return {f"{prefix}{at}": replace(up, node_id=node_id) for at, node_id in enumerate(nodes)}


def test_a_wake_waits_until_whoever_is_no_longer_wanted_sleeps() -> None:
    nodes = Nodes(1, a=Wanted(awake("a", "x"), 0), b=Wanted(asleep("b", "x"), 1))
    nodes.tick()
    assert nodes.models["a"].orders == {"a0": Rung.PARKED}
    assert nodes.models["b"].orders == {"b0": Rung.PARKED}
    nodes.run(2 * MOVE_S + 4)
    assert nodes.models["b"].num_serving_now == 1


def test_whoever_is_missed_less_gives_way() -> None:
    full = Wanted(awake("a", "x", "x", "x"), 3)
    half = Wanted(awake("b", "x"), 4)
    short = Wanted(asleep("c", "x", "x"), 2)
    nodes = Nodes(4, a=full, b=half, c=short)
    nodes.run(round(LEAST_AWAKE_S) + 40)
    assert [each.num_serving_now for each in nodes.models.values()] == [2, 1, 1]


def test_nobody_who_is_wanted_gives_way_before_it_was_awake_for_a_while() -> None:
    nodes = Nodes(2, a=Wanted(awake("a", "x", "x"), 2), b=Wanted(asleep("b", "x"), 1))
    nodes.run(round(LEAST_AWAKE_S))
    assert nodes.models["a"].num_serving_now == 2
    nodes.run(20)
    assert nodes.models["a"].num_serving_now == 1


def test_a_minimum_is_not_taken_away_for_what_is_above_another() -> None:
    kept = Wanted(awake("a", "x", "x"), 2, minimum=2)
    nodes = Nodes(2, a=kept, b=Wanted(asleep("b", "x", "x"), 2))
    nodes.run(200)
    assert kept.num_serving_now == 2


def test_a_sleeper_on_a_node_with_room_wakes_first() -> None:
    model = Wanted(asleep("b", "x", "y"), 1)
    nodes = Nodes(1, a=Wanted(awake("a", "x"), 1), b=model)
    nodes.tick()
    assert model.orders == {"b0": Rung.PARKED, "b1": Rung.SERVING}


def test_what_is_held_and_what_nobody_plans_keeps_its_accelerators() -> None:
    wanting = Wanted(asleep("b", "x", "y"), 2, is_asked=True)
    nodes = Nodes(1, a=Wanted(awake("a", "x"), 0, is_held=True), b=wanting)
    nodes.others = (make_replica("other", node_id="y"),)
    nodes.run(200)
    assert wanting.num_serving_now == 0


def test_one_that_starts_awake_on_a_full_node_sleeps_and_wakes_in_its_turn() -> None:
    nodes = Nodes(1, a=Wanted(awake("a", "x"), 1))
    nodes.run(5)
    started = Wanted(awake("b", "x"), 1, is_asked=True)
    nodes.models["b"] = started
    started.config = ModelScalingConfig(name="b")
    nodes.tick()
    assert nodes.models["a"].orders == {"a0": Rung.SERVING}
    assert started.orders == {"b0": Rung.PARKED}
    for _ in range(MOVE_S + 1):
        nodes.tick()
    nodes.run(round(LEAST_AWAKE_S) + 10)
    assert started.num_serving_now == 1


def test_large_replicas_wait_for_as_many_small_ones_as_they_need() -> None:
    large = Wanted(
        asleep("b", "x"), 1, ModelScalingConfig(name="b", devices_per_replica=2, late_cost=500.0)
    )
    small = Wanted(awake("a", "x", "x"), 2)
    nodes = Nodes(2, a=small, b=large)
    nodes.run(round(LEAST_AWAKE_S) + 20)
    assert (small.num_serving_now, large.num_serving_now) == (0, 1)


def test_room_that_is_promised_is_not_given_to_a_smaller_one_meanwhile() -> None:
    large = Wanted(
        asleep("b", "x"), 1, ModelScalingConfig(name="b", devices_per_replica=2, late_cost=500.0)
    )
    quick, slow = Wanted(awake("a", "x"), 1), Wanted(awake("c", "x"), 1)
    slow.engines["c0"].move_s = 20
    nodes = Nodes(2, a=quick, b=large, c=slow)
    nodes.run(round(LEAST_AWAKE_S) + 40)
    assert large.num_serving_now == 1
    assert nodes.num_wakes == 1


def test_an_order_that_was_taken_back_may_still_arrive() -> None:
    first, second = Wanted(asleep("a", "x"), 1), Wanted(asleep("b", "x"), 0)
    nodes = Nodes(1, a=first, b=second)
    nodes.tick(delay=2)
    first.num_serving, second.num_serving = 0, 1
    for _ in range(20):
        nodes.tick(delay=2)
        assert nodes.is_within()
    assert second.num_serving_now == 1


def test_an_order_of_a_model_that_is_held_since_still_counts() -> None:
    first, second = Wanted(asleep("a", "x"), 1), Wanted(asleep("b", "x"), 0)
    nodes = Nodes(1, a=first, b=second)
    nodes.tick(delay=30)
    first.is_held = True
    for _ in range(10):
        nodes.tick(delay=30)
    second.num_serving = 1
    nodes.tick(delay=30)
    assert second.orders == {"b0": Rung.PARKED}


def test_for_the_room_of_one_that_leaves_nobody_else_has_to_go() -> None:
    leaving = make_replica("a0", node_id="x", is_draining=True)
    kept, wanting = make_replica("c0", node_id="x"), make_replica("b0", Rung.PARKED, node_id="x")
    sharers = [
        Sharer(
            ModelScalingConfig(name=name, late_cost=cost), 1, 0, True, WAKE_S, (each,), {}, False
        )
        for name, cost, each in (("a", 1.0, leaving), ("c", 1.0, kept), ("b", 50.0, wanting))
    ]
    sharing = NodeSharing()
    for now_s in (0.0, 2 * LEAST_AWAKE_S):
        rungs = sharing.assign(now_s, sharers, (), 2)
    assert rungs == [{}, {"c0": Rung.SERVING}, {"b0": Rung.PARKED}]


def test_who_needs_no_accelerator_wakes_on_a_full_node_and_makes_no_room() -> None:
    free = ModelScalingConfig(name="b", devices_per_replica=0, late_cost=1.0)
    full, on_cpu = Wanted(awake("a", "x"), 1), Wanted(asleep("b", "x"), 1, free)
    wanting = Wanted(asleep("c", "x"), 1, ModelScalingConfig(name="c", late_cost=20.0))
    nodes = Nodes(1, a=full, b=on_cpu, c=wanting)
    nodes.run(round(LEAST_AWAKE_S) + 20)
    assert [each.num_serving_now for each in (full, on_cpu, wanting)] == [1, 1, 0]


def test_models_that_are_asked_all_the_time_take_turns_of_a_minute() -> None:
    names = "abc"
    models = {name: Wanted(asleep(name, "x"), 1, is_asked=True) for name in names}
    nodes = Nodes(1, **models)
    served = dict.fromkeys(names, 0)
    time_s = 900
    for _ in range(time_s):
        nodes.run(1)
        for name in names:
            served[name] += models[name].num_serving_now
    assert min(served.values()) > 0.25 * time_s
    assert nodes.num_wakes <= time_s / LEAST_AWAKE_S


def test_a_model_that_nobody_asks_keeps_its_place_until_somebody_asks_another() -> None:
    first, second = Wanted(awake("a", "x"), 1), Wanted(asleep("b", "x"), 1)
    nodes = Nodes(1, a=first, b=second)
    nodes.run(300)
    assert first.num_serving_now == 1
    second.is_asked = True
    nodes.run(2 * MOVE_S + 4)
    assert second.num_serving_now == 1


def test_plans_wake_whoever_is_asked_and_say_why_another_waits() -> None:
    config = AutoscalerConfig(
        models=tuple(
            ModelScalingConfig(
                name=name, min_replicas=0, capacity=CapacityConfig(requests_per_s=10.0)
            )
            for name in "ab"
        ),
        devices_per_node=1,
    )
    engines = {"a": Engine("x", Rung.SERVING, Rung.SERVING), "b": Engine("x")}
    state = PlannerState.new(1)
    reasons = []
    for second in range(90):
        # Nobody asks the one that is awake.
        demands = {"a": make_demand(0.0), "b": make_demand(0.5, num_waiting=3.0)}
        models = tuple(
            ModelObservation(
                name,
                demands[name],
                (make_replica(name, each.rung, node_id="x", is_moving=each.left_s > 0),),
                ServeObservation(1, 1, 0, 1),
            )
            for name, each in engines.items()
        )
        plan = decide(FleetObservation(float(second), NOON_S + second, models), state, config).plan
        for each in plan.models:
            reasons.append(each.reason)
            engines[each.model].order = each.rungs.get(each.model, engines[each.model].order)
        for engine in engines.values():
            engine.tick()
        assert not all(each.is_up for each in engines.values())
    assert engines["b"].rung is Rung.SERVING
    assert any("1 wait until others on their nodes sleep" in each for each in reasons)


def test_a_budget_counts_who_is_awake_and_lets_the_others_sleep() -> None:
    config = AutoscalerConfig(
        models=tuple(ModelScalingConfig(name=name, num_replicas=3) for name in "ab"),
        device_budget=4,
        devices_per_node=8,
    )
    serve = ServeObservation(3, 0, 0, 9)
    models = tuple(ModelObservation(name, None, serve=serve) for name in "ab")
    plan = decide(FleetObservation(1.0, NOON_S, models), PlannerState.new(1), config).plan
    assert [(each.num_serving, each.num_parked) for each in plan.models] == [(2, 1), (2, 1)]
    assert plan.num_devices == 4


NODE_IDS = st.sampled_from(["x", "y"])
MODELS = st.builds(
    lambda nodes, wanted, devices, cost, minimum, is_asked: (
        nodes,
        wanted,
        ModelScalingConfig(name="?", devices_per_replica=devices, late_cost=cost),
        minimum,
        is_asked,
    ),
    st.lists(NODE_IDS, max_size=4),
    st.integers(0, 5),
    st.integers(0, 2),
    st.sampled_from([1.0, 50.0, 500.0]),
    st.integers(0, 2),
    st.booleans(),
)


def built(made: list[tuple[list[str], int, ModelScalingConfig, int, bool]], num: int) -> Nodes:
    models = {
        f"m{at}": Wanted(asleep(f"m{at}/", *nodes), wanted, config, minimum, is_asked)
        for at, (nodes, wanted, config, minimum, is_asked) in enumerate(made)
    }
    return Nodes(num, **models)


@settings(max_examples=25, deadline=None)
@given(st.lists(MODELS, min_size=1, max_size=4), st.integers(2, 4), st.data())
def test_no_more_are_ever_awake_on_a_node_than_it_has_accelerators(
    made: list[tuple[list[str], int, ModelScalingConfig, int, bool]], num: int, data: st.DataObject
) -> None:
    nodes = built(made, num)
    for _ in range(6):
        for model in nodes.models.values():
            model.num_serving = data.draw(st.integers(0, 5))
            model.is_held = data.draw(st.integers(0, 5)) == 0
            model.is_asked = data.draw(st.booleans())
        if data.draw(st.booleans()):
            nodes.restart()
        nodes.now_s += data.draw(st.sampled_from([0.0, 70.0]))
        delay = data.draw(st.integers(0, 2))
        for _ in range(data.draw(st.integers(1, MOVE_S + 2))):
            nodes.tick(delay=delay)
            assert nodes.is_within(), nodes.taken()


@settings(max_examples=25, deadline=None)
@given(st.lists(MODELS, min_size=1, max_size=4), st.integers(2, 4))
def test_sizes_that_stay_come_to_rest_with_no_room_left_for_who_is_missed(
    made: list[tuple[list[str], int, ModelScalingConfig, int, bool]], num: int
) -> None:
    nodes = built(made, num)
    for model in nodes.models.values():
        model.is_asked = False
    for _ in range(12):
        nodes.now_s += LEAST_AWAKE_S
        nodes.run(2 * MOVE_S + 4)
    before = nodes.num_wakes
    nodes.now_s += LEAST_AWAKE_S
    nodes.run(2 * MOVE_S + 4)
    assert nodes.num_wakes == before
    taken = nodes.taken()
    for model in nodes.models.values():
        if model.num_serving_now < model.num_serving:
            needed = model.config.devices_per_replica
            for engine in model.engines.values():
                assert engine.is_up or taken[engine.node_id] + needed > num
