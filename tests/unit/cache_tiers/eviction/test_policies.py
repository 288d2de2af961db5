"""All eviction policies: what leaves first, and that each leaves once."""

from dataclasses import dataclass, field
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.eviction.base import EvictionPolicy
from cache_tiers.eviction.create import PolicyName, create_policy
from cache_tiers.eviction.value import ValuePolicy

NAMES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass
class Facts:
    """Blocks are their own keys; all else is what a test says."""

    used_s: dict[int, float] = field(default_factory=dict)
    worths: dict[int, float] = field(default_factory=dict)

    def key(self, entry: int) -> bytes:
        return entry.to_bytes(16, "little")

    def layout_number(self, entry: int) -> int:
        return entry % 2

    def last_used_s(self, entry: int) -> float:
        return self.used_s.get(entry, 0.0)

    def worth(self, entry: int) -> float:
        return self.worths.get(entry, 1.0)


def make(name: PolicyName, capacity: int = 4) -> EvictionPolicy:
    return create_policy(name, Facts(), capacity)


def evict(policy: EvictionPolicy) -> int | None:
    return policy.evict(1.0, lambda _: True)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_in_leaves_once_and_nothing_that_must_stay(
    name: PolicyName, data: st.DataObject
) -> None:
    facts = Facts()
    policy = create_policy(name, facts, 4)
    held: set[int] = set()
    for step in range(data.draw(st.integers(1, 40))):
        entry = data.draw(st.integers(0, 7))
        now_s = float(step)
        facts.used_s[entry] = now_s
        match data.draw(st.sampled_from(["use", "remove", "evict"])):
            case "use" if entry in held:
                policy.touch(entry, now_s)
            case "use":
                policy.insert(entry, now_s)
                held.add(entry)
            case "remove" if entry in held:
                policy.remove(entry)
                held.remove(entry)
            case "evict":
                must_stay = data.draw(st.sets(st.integers(0, 7)))
                victim = policy.evict(now_s, (set(range(8)) - must_stay).__contains__)
                assert (victim is None) == (held <= must_stay)
                if victim is not None:
                    assert victim in held - must_stay
                    held.remove(victim)
    left = {evict(policy) for _ in range(len(held))}
    assert left == held
    assert evict(policy) is None


def test_lru_evicts_what_was_used_longest_ago() -> None:
    policy = make("lru")
    for entry in range(3):
        policy.insert(entry, 0.0)
    policy.touch(0, 0.0)
    assert [evict(policy) for _ in range(3)] == [1, 2, 0]


def test_s3fifo_drops_what_passes_the_small_queue_unused_and_remembers_it() -> None:
    policy = make("s3fifo", capacity=10)
    for entry in (1, 2):
        policy.insert(entry, 0.0)
    for _ in range(2):
        policy.touch(2, 0.0)
    assert evict(policy) == 1
    policy.insert(3, 0.0)
    assert evict(policy) == 3, "2 is in the main queue"
    policy.insert(1, 0.0)  # a ghost: into the main queue
    policy.insert(4, 0.0)
    assert evict(policy) == 4


def test_arc_keeps_what_is_used_often_through_a_scan() -> None:
    policy = make("arc", capacity=4)
    for entry in (1, 2):
        policy.insert(entry, 0.0)
        policy.touch(entry, 0.0)
    for entry in range(10, 30):
        policy.insert(entry, 0.0)
        assert evict(policy) == entry


def test_arc_learns_to_favour_recency_from_its_ghosts() -> None:
    policy = make("arc", capacity=4)
    for entry in (1, 2):
        policy.insert(entry, 0.0)
        policy.touch(entry, 0.0)
    for entry in (3, 4):
        policy.insert(entry, 0.0)
    assert evict(policy) == 3
    policy.insert(3, 0.0)  # came back: the list of blocks used once should have been longer
    policy.insert(5, 0.0)
    assert evict(policy) == 4
    policy.insert(4, 0.0)
    assert evict(policy) == 1


def test_value_is_lru_among_blocks_of_one_model() -> None:
    facts = Facts()
    policy = ValuePolicy(facts)
    for step, entry in enumerate((0, 2, 4, 0)):
        facts.used_s[entry] = float(step)
        policy.touch(entry, step) if step == 3 else policy.insert(entry, step)
    assert [evict(policy) for _ in range(3)] == [2, 4, 0]


def test_value_weighs_age_by_what_a_byte_saves() -> None:
    """The model of odd blocks takes three times as long to compute a byte of KV."""
    facts = Facts(
        worths={0: 1.0, 2: 1.0, 1: 3.0, 3: 3.0}, used_s={0: 0.0, 2: 60.0, 1: 0.0, 3: 60.0}
    )
    policy = ValuePolicy(facts)
    for entry in (0, 1, 2, 3):
        policy.insert(entry, facts.used_s[entry])
    # Ages at 100 s, over worths: 100, 33, 40, 13.
    assert [policy.evict(100.0, lambda _: True) for _ in range(4)] == [0, 2, 1, 3]


def test_value_passes_over_what_must_stay() -> None:
    policy = ValuePolicy(Facts(worths={0: 1.0, 1: 2.0, 2: 1.0}))
    for entry in (0, 1, 2):
        policy.insert(entry, 0.0)
    assert policy.evict(1.0, lambda entry: entry == 1) == 1
    assert policy.evict(1.0, lambda entry: entry != 0) == 2
    assert policy.evict(1.0, lambda _: False) is None
    assert evict(policy) == 0
