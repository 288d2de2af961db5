"""The prefix index against a plain model of it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.routing.index import PrefixIndex
from engine.messages import CacheEvents

ENGINES = st.sampled_from(["e0", "e1", "e2"])
KEYS = st.lists(st.integers(0, 11).map(lambda number: b"%02d" % number), max_size=6)


class IndexMachine(RuleBasedStateMachine):
    """Room for all keys, so that the model needs no order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(max_keys=12)
        self.held: dict[str, set[bytes]] = {}
        self.sequence: dict[str, int] = {}

    @rule(engine=ENGINES, keys=KEYS)
    def send(self, engine: str, keys: list[bytes]) -> None:
        self.index.add(engine, keys)
        self.held.setdefault(engine, set()).update(keys)

    @rule(engine=ENGINES, stored=KEYS, evicted=KEYS, jump=st.sampled_from([0, 0, 0, 1]))
    def hear(self, engine: str, stored: list[bytes], evicted: list[bytes], jump: int) -> None:
        is_known = engine in self.sequence
        sequence = self.sequence.get(engine, 41) + 1 + jump
        self.index.apply(engine, CacheEvents(sequence, stored, evicted))
        held = self.held.setdefault(engine, set())
        if jump and is_known:
            held.clear()
        held.difference_update(evicted)
        held.update(stored)
        self.sequence[engine] = sequence

    @precondition(lambda self: self.held)
    @rule(engine=ENGINES)
    def leave(self, engine: str) -> None:
        self.index.forget(engine)
        self.held.pop(engine, None)
        self.sequence.pop(engine, None)

    @rule(keys=KEYS)
    def ask(self, keys: list[bytes]) -> None:
        expected = {}
        for engine, held in self.held.items():
            num_held = next((i for i, key in enumerate(keys) if key not in held), len(keys))
            if num_held:
                expected[engine] = num_held
        assert self.index.num_matching(keys) == expected

    @invariant()
    def is_whole(self) -> None:
        self.index.check_integrity()


IndexMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestIndex = IndexMachine.TestCase


@given(st.lists(st.tuples(ENGINES, KEYS), max_size=20), st.integers(1, 5))
def test_memory_is_bounded_whatever_is_sent(
    sends: list[tuple[str, list[bytes]]], max_keys: int
) -> None:
    index = PrefixIndex(max_keys)
    for engine, keys in sends:
        index.add(engine, keys)
        index.check_integrity()
    index.resize(1)
    index.check_integrity()


def test_the_least_recently_used_keys_go_first() -> None:
    index = PrefixIndex(max_keys=2)
    index.add("e0", [b"a", b"b"])
    index.num_matching([b"a"])
    index.add("e0", [b"c"])
    assert index.num_matching([b"a"]) == {"e0": 1}
    assert index.num_matching([b"b"]) == {}


def test_the_first_events_of_an_engine_may_begin_anywhere() -> None:
    index = PrefixIndex(max_keys=10)
    index.add("e0", [b"a"])
    index.apply("e0", CacheEvents(700, [b"b"], []))
    assert index.num_matching([b"a", b"b"]) == {"e0": 2}
