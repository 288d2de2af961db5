"""Nodes are asked for when the plan changes, and no failure of it matters."""

from collections.abc import Sequence

from autoscaler.plan import ModelPlan, Plan
from deployments.node_rooms import ClusterNode
from deployments.nodes import REPEATED_S, NodeRequests

BUNDLES = {"a": {"CPU": 2.0, "GPU": 8.0}, "c": {}}


def plan_of(**sizes: int) -> Plan:
    models = tuple(
        ModelPlan(name, 1, 0, 0, 9, {}, None, (), "", num_nodes=size)
        for name, size in sizes.items()
    )
    return Plan(0.0, 0.0, 1, 1, models)


class Ray:
    """Remembers what it was asked for; fails while told to."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, float]]] = []
        self.is_broken = False

    async def request(self, bundles: Sequence[dict[str, float]]) -> None:
        if self.is_broken:
            raise RuntimeError("no GCS")
        self.asked.append(list(bundles))


async def test_each_replicas_worth_of_nodes_is_a_bundle() -> None:
    ray = Ray()
    # Of b Serve has said nothing yet, and c reserves nothing.
    await NodeRequests(ray.request).ask(plan_of(a=2, b=3, c=4), BUNDLES)
    assert ray.asked == [[BUNDLES["a"]] * 2]


async def test_only_a_change_is_asked_for() -> None:
    ray = Ray()
    nodes = NodeRequests(ray.request)
    for size in (1, 1, 2, 2, 1):
        await nodes.ask(plan_of(a=size), BUNDLES)
    assert [len(bundles) for bundles in ray.asked] == [1, 2, 1]


async def test_nothing_is_asked_for_nothing_and_taken_back_once() -> None:
    ray = Ray()
    nodes = NodeRequests(ray.request)
    await nodes.ask(None, {})
    assert ray.asked == []
    await nodes.ask(plan_of(a=1), BUNDLES)
    await nodes.ask(None, {})
    await nodes.ask(None, {})
    assert ray.asked[1:] == [[]]


async def test_what_another_may_have_taken_back_is_asked_for_again_each_minute() -> None:
    ray, times_s = Ray(), iter([0.0, 1.0, REPEATED_S, REPEATED_S + 1, 2 * REPEATED_S])
    nodes = NodeRequests(ray.request, clock=lambda: next(times_s))
    for size in (1, 1, 1, 0, 0):
        await nodes.ask(plan_of(a=size) if size else None, BUNDLES)
    assert [len(bundles) for bundles in ray.asked] == [1, 1, 0]


async def test_a_failure_is_tried_again() -> None:
    ray = Ray()
    nodes = NodeRequests(ray.request)
    ray.is_broken = True
    await nodes.ask(plan_of(a=1), BUNDLES)
    ray.is_broken = False
    await nodes.ask(plan_of(a=1), BUNDLES)
    assert len(ray.asked) == 1


async def test_a_node_that_was_asked_for_is_measured_until_it_is_ready() -> None:
    now_s = 0.0
    nodes = NodeRequests(Ray().request, clock=lambda: now_s)
    first, second, other = (
        ClusterNode(name, total, {})
        for name, total in (("x", BUNDLES["a"]), ("y", BUNDLES["a"]), ("z", {"CPU": 64.0}))
    )
    await nodes.ask(plan_of(a=1), BUNDLES)
    nodes.see([first], {"x"})
    now_s = 10.0
    await nodes.ask(plan_of(a=2), BUNDLES)
    nodes.see([first], {"x"})
    now_s = 50.0
    nodes.see([first, second, other], {"x", "z"})  # one isn't ready, the other isn't it
    assert not nodes.leads.times_s
    now_s = 70.0
    nodes.see([first, second, other], {"x", "y", "z"})
    assert nodes.leads.times_s == (60.0,)
