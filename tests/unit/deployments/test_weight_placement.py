"""Who holds weights keeps them, the emptiest nodes get them, and each asks those before it."""

from hypothesis import given
from hypothesis import strategies as st

from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from deployments.weight_placement import MAX_PARENTS, NodeHolding, NodeOrder, place

GB = 10**9


def address(name: str) -> PeerAddress:
    return PeerAddress(name, 7000, b"secret")


def node(
    name: str,
    rung: Rung = Rung.COLD,
    *,
    wanted: Rung | None = None,
    free_bytes: int = GB,
    num_done_bytes: int = 0,
    num_leases: int = 0,
    lends: bool = True,
) -> NodeHolding:
    wanted = rung if wanted is None else wanted
    where = address(name) if lends else None
    return NodeHolding(name, where, rung, wanted, free_bytes, num_done_bytes, num_leases)


def names(orders: list[NodeOrder]) -> list[str]:
    return [order.node_id for order in orders]


def test_who_holds_the_weights_keeps_them() -> None:
    nodes = [node("a", free_bytes=9 * GB), node("b", Rung.STAGED, free_bytes=0), node("c")]

    assert names(place(nodes, 1, Rung.STAGED)) == ["b"]


def test_who_is_on_the_way_goes_on_rather_than_another_with_more_room() -> None:
    nodes = [node("a", free_bytes=9 * GB), node("b", wanted=Rung.STAGED, free_bytes=0)]

    assert names(place(nodes, 1, Rung.STAGED)) == ["b"]


def test_who_has_them_on_disk_comes_before_who_has_nothing() -> None:
    nodes = [node("a", free_bytes=9 * GB), node("b", Rung.ON_DISK)]

    assert names(place(nodes, 1, Rung.STAGED)) == ["b"]


def test_then_the_node_with_the_most_free_memory_is_taken() -> None:
    nodes = [node("a", free_bytes=GB), node("b", free_bytes=3 * GB), node("c", free_bytes=2 * GB)]

    assert set(names(place(nodes, 2, Rung.STAGED))) == {"b", "c"}


def test_each_asks_those_before_it_nearest_first() -> None:
    nodes = [node("c"), node("b"), node("a", Rung.STAGED)]

    orders = place(nodes, 3, Rung.STAGED)

    assert [(order.node_id, order.parents) for order in orders] == [
        ("a", ()),
        ("b", (address("a"),)),
        ("c", (address("b"), address("a"))),
    ]


def test_a_long_chain_names_its_head_and_the_nearest_ones() -> None:
    nodes = [node(f"{number:02}") for number in range(9)]

    last = place(nodes, 9, Rung.STAGED)[-1]

    assert last.parents == tuple(address(name) for name in ("07", "06", "05", "00"))


def test_who_lends_nothing_is_nobodys_parent() -> None:
    nodes = [node("a", Rung.STAGED, lends=False), node("b")]

    assert place(nodes, 2, Rung.STAGED)[1].parents == ()


holdings = st.lists(
    st.builds(
        node,
        st.sampled_from([f"{number}" for number in range(12)]),
        st.sampled_from([Rung.COLD, Rung.ON_DISK, Rung.STAGED]),
        wanted=st.sampled_from([Rung.COLD, Rung.ON_DISK, Rung.STAGED]),
        free_bytes=st.integers(0, 3),
        num_done_bytes=st.integers(0, 3),
        lends=st.booleans(),
    ),
    unique_by=lambda each: each.node_id,
)


@given(holdings, st.integers(-1, 14))
def test_orders_are_as_many_as_wanted_and_follow_from_the_nodes_alone(
    nodes: list[NodeHolding], num_wanted: int
) -> None:
    orders = place(nodes, num_wanted, Rung.STAGED)

    assert len(set(names(orders))) == len(orders) == min(max(0, num_wanted), len(nodes))
    assert orders == place(nodes[::-1], num_wanted, Rung.STAGED)
    asked: list[PeerAddress] = []
    for order in orders:
        assert len(order.parents) <= MAX_PARENTS
        assert set(order.parents) <= set(asked)  # nobody waits for one behind it
        asked.append(address(order.node_id))


@given(holdings, st.integers(0, 14))
def test_a_node_that_is_chosen_stays_chosen_while_it_brings_them(
    nodes: list[NodeHolding], num_wanted: int
) -> None:
    chosen = set(names(place(nodes, num_wanted, Rung.STAGED)))
    ordered = [
        node(
            each.node_id,
            each.rung,
            wanted=Rung.STAGED if each.node_id in chosen else Rung.COLD,
            free_bytes=0 if each.node_id in chosen else 5,
        )
        for each in nodes
        if each.node_id in chosen or each.rung is Rung.COLD
    ]

    assert set(names(place(ordered, num_wanted, Rung.STAGED))) == chosen
