"""Nodes are chosen so that the plan's replicas find room where weights are."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.plan import ModelPlan
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import NodeWeightsReport, WeightsState
from deployments.node_rooms import ClusterNode
from deployments.weight_rooms import Held, ModelNodes, NodeNeed, choose

BUNDLE = {"GPU": 2.0}


def peer_of(node_id: str) -> PeerAddress:
    return PeerAddress(node_id, 1, b"s")


class Nodes:
    """A few, as they are seen."""

    def __init__(self) -> None:
        self.nodes: list[ClusterNode] = []
        self.reports: dict[str, NodeWeightsReport | None] = {}
        self.failed: set[str] = set()

    def add(
        self,
        node_id: str,
        rung: Rung | None = None,
        *,
        rooms: int = 1,
        total: int = 4,
        wanted: Rung = Rung.COLD,
        failure: str | None = None,
        num_leases: int = 0,
    ) -> None:
        """``rung``: None where there is no cache."""
        self.nodes.append(ClusterNode(node_id, {"GPU": 2.0 * total}, {"GPU": 2.0 * rooms}))
        if rung is not None:
            state = WeightsState(
                "m", rung, max(rung, wanted), failure=failure, num_leases=num_leases
            )
            self.reports[node_id] = NodeWeightsReport(peer_of(node_id), 100, 0, (state,))

    def seen(self, *, has_weights: bool = True) -> ModelNodes:
        return ModelNodes.of(
            "m", BUNDLE, self.nodes, self.reports, self.failed, has_weights=has_weights
        )

    def chosen(self, num_staged: int, num_on_disk: int = 0) -> list[NodeNeed]:
        plan = ModelPlan("m", 0, 0, num_staged, num_on_disk, {}, None, (), "")
        return choose(self.seen(), plan, 7.0)


def ids(needs: Sequence[NodeNeed], rung: Rung = Rung.STAGED) -> set[str]:
    return {need.node_id for need in needs if need.rung is rung}


def test_what_is_held_counts_in_replicas_that_find_room() -> None:
    nodes = Nodes()
    nodes.add("a", Rung.STAGED, rooms=3)
    nodes.add("b", Rung.STAGED, rooms=0)
    nodes.add("c", Rung.ON_DISK, rooms=2)
    nodes.add("d", Rung.COLD, wanted=Rung.STAGED, failure="no room")
    nodes.add("e")
    nodes.add("too small", total=0)
    assert nodes.seen().held() == Held(3, 2, 20, 1)
    assert nodes.seen(has_weights=False).held() == Held(None, None, 20, None)


def test_nodes_that_hold_them_are_chosen_before_others_and_no_more_than_needed() -> None:
    nodes = Nodes()
    nodes.add("cold", rooms=9, total=9)
    nodes.add("disk", Rung.ON_DISK, rooms=2)
    nodes.add("memory", Rung.STAGED, rooms=2)
    nodes.add("full", Rung.STAGED, rooms=0)
    assert ids(nodes.chosen(1)) == {"memory"}
    assert ids(nodes.chosen(3)) == {"memory", "disk"}
    assert ids(nodes.chosen(5)) == {"memory", "disk", "cold"}
    assert ids(nodes.chosen(50)) == {"memory", "disk", "cold"}
    assert nodes.chosen(0) == []


def test_disks_are_chosen_among_the_rest() -> None:
    nodes = Nodes()
    for name in "abc":
        nodes.add(name, Rung.ON_DISK)
    needs = nodes.chosen(1, 1)
    assert ids(needs) == {"a"}
    assert ids(needs, Rung.ON_DISK) == {"b"}
    assert {need.needed_s for need in needs} == {7.0}


def test_a_node_that_fails_or_is_silent_is_replaced_by_one_that_does_not() -> None:
    nodes = Nodes()
    nodes.add("failing", Rung.COLD, wanted=Rung.STAGED, failure="no room")
    nodes.add("silent", Rung.STAGED)
    nodes.failed = {"silent"}
    nodes.add("sound")
    assert ids(nodes.chosen(1)) == {"sound"}
    assert ids(nodes.chosen(3)) == {"sound", "failing", "silent"}


def test_nodes_where_replicas_run_are_asked_before_the_source() -> None:
    nodes = Nodes()
    nodes.add("runs", Rung.STAGED, rooms=0, num_leases=1)
    nodes.add("new", Rung.COLD)
    (need,) = nodes.chosen(1)
    assert need.parents == (peer_of("runs"),)


def test_several_form_a_chain_and_disks_ask_who_gets_it_into_memory() -> None:
    nodes = Nodes()
    for name in "abc":
        nodes.add(name, Rung.COLD)
    first, second, disk = nodes.chosen(2, 1)
    assert first.parents == ()
    assert second.parents == (peer_of(first.node_id),)
    assert disk.parents == (peer_of(first.node_id),)


RUNGS = st.sampled_from([None, Rung.COLD, Rung.ON_DISK, Rung.STAGED])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(RUNGS, st.integers(0, 4), st.booleans()), max_size=8),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_there_is_room_for_all_where_there_can_be_and_nobody_is_asked_twice(
    kinds: list[tuple[Rung | None, int, bool]], num_staged: int, num_on_disk: int
) -> None:
    nodes = Nodes()
    for at, (rung, rooms, is_silent) in enumerate(kinds):
        nodes.add(f"n{at}", rung, rooms=rooms)
        if is_silent:
            nodes.failed.add(f"n{at}")
    needs = nodes.chosen(num_staged, num_on_disk)
    assert len({need.node_id for need in needs}) == len(needs)
    rooms_of = {f"n{at}": rooms for at, (_, rooms, _) in enumerate(kinds)}
    found = sum(rooms_of[each] for each in ids(needs))
    assert found >= min(num_staged, sum(rooms_of.values()))
    for need in needs:
        assert rooms_of[need.node_id] > 0
        assert peer_of(need.node_id) not in need.parents
