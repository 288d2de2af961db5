"""LRU tiers of a fleet, beside a slow twin."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.routing_cache import FleetCaches, TierCapacities


def keys(text: str) -> list[bytes]:
    """A letter is a block."""
    return [letter.encode() for letter in text]


class SlowCache:
    """One replica: a list, used last first, cut into tiers."""

    def __init__(self, capacities: TierCapacities) -> None:
        self.tiers: list[list[bytes]] = [[] for _ in capacities]
        self.capacities = capacities

    def use(self, used: list[bytes]) -> None:
        for key in reversed(used):
            for tier in self.tiers:
                if key in tier:
                    tier.remove(key)
            self.tiers[0].insert(0, key)
        for number, capacity in enumerate(self.capacities):
            dropped = self.tiers[number][capacity:]
            del self.tiers[number][capacity:]
            if number + 1 < len(self.tiers):
                self.tiers[number + 1][:0] = dropped

    def match(self, wanted: list[bytes], tier: int) -> int:
        held = {key for blocks in self.tiers[: tier + 1] for key in blocks}
        return next((depth for depth, key in enumerate(wanted) if key not in held), len(wanted))


prompts = st.text("abcdefg", max_size=6).map(lambda text: "".join(dict.fromkeys(text)))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)),
    st.lists(st.tuples(st.integers(0, 2), prompts), max_size=25),
    prompts,
)
def test_caches_hold_what_the_slow_twin_holds(
    capacities: tuple[int, int, int], uses: list[tuple[int, str]], wanted: str
) -> None:
    fleet = FleetCaches(TierCapacities(*capacities))
    slow = [SlowCache(TierCapacities(*capacities)) for _ in range(3)]
    for _ in slow:
        fleet.add_replica()
    for replica, text in uses:
        fleet.use(replica, keys(text))
        slow[replica].use(keys(text))
    fleet.check_integrity()
    for tier in range(fleet.num_tiers):
        expected = [cache.match(keys(wanted), tier) for cache in slow]
        assert fleet.matches(keys(wanted), tier) == expected
        assert [fleet.match(r, keys(wanted), tier) for r in range(3)] == expected
    fleet.clear(1)
    fleet.check_integrity()
    assert fleet.match(1, keys("a"), fleet.num_tiers - 1) == 0
    assert fleet.num_blocks(1) == 0


def test_a_beginning_outlives_what_follows_it() -> None:
    fleet = FleetCaches(TierCapacities(3))
    fleet.add_replica()
    fleet.use(0, keys("abc"))
    fleet.use(0, keys("x"))
    assert fleet.match(0, keys("abc")) == 2


def test_what_the_accelerator_drops_is_found_behind_it_and_comes_back_when_used() -> None:
    fleet = FleetCaches(TierCapacities(2, 2))
    fleet.add_replica()
    fleet.use(0, keys("ab"))
    fleet.use(0, keys("cd"))
    assert [fleet.match(0, keys("ab"), tier) for tier in (0, 1)] == [0, 2]
    fleet.use(0, keys("ab"))
    assert [fleet.match(0, keys("ab"), tier) for tier in (0, 1)] == [2, 2]
    assert [fleet.match(0, keys("cd"), tier) for tier in (0, 1)] == [0, 2]
