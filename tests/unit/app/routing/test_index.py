"""The prefix index against a plain model of it."""

import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.routing.index import BYTES_PER_KEY, PrefixIndex
from cache_tiers.keys import KEY_BYTES
from engine.messages import CacheEvents, CacheSnapshot


def key(name: bytes) -> bytes:
    """As long as keys are."""
    return name.rjust(KEY_BYTES)


def keys(*names: bytes) -> list[bytes]:
    return [key(name) for name in names]


ENGINES = st.sampled_from(["e0", "e1", "e2"])
KEYS = st.lists(
    st.integers(0, 11).map(lambda number: key(b"%02d" % number)), max_size=6, unique=True
)
ROOM_FOR_ALL_BYTES = 100_000


class IndexMachine(RuleBasedStateMachine):
    """Engines with true caches, events that may be lost or come twice, and sends.

    There is room for all keys, so that the model needs no order of use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(ROOM_FOR_ALL_BYTES)
        self.caches: dict[str, set[bytes]] = {"e0": set(), "e1": set(), "e2": set()}
        self.sequences = dict.fromkeys(self.caches, 0)
        self.sends: dict[tuple[str, str], list[bytes]] = {}
        self.is_known = dict.fromkeys(self.caches, False)
        for engine in self.caches:
            self.seed(engine, 1)

    def seed(self, engine: str, num_parts: int) -> None:
        keys = sorted(self.caches[engine])
        for part in range(num_parts):
            snapshot = CacheSnapshot(
                self.sequences[engine], keys[part::num_parts], part == 0, part == num_parts - 1
            )
            assert not self.index.seed(engine, snapshot)
        self.is_known[engine] = True

    @rule(engine=ENGINES, num_parts=st.integers(1, 3))
    def take_a_snapshot(self, engine: str, num_parts: int) -> None:
        self.seed(engine, num_parts)

    @rule(engine=ENGINES, stored=KEYS, evicted=KEYS, fate=st.sampled_from(["", "", "lost", "2"]))
    def change(self, engine: str, stored: list[bytes], evicted: list[bytes], fate: str) -> None:
        self.sequences[engine] += 1
        self.caches[engine] -= set(evicted)
        self.caches[engine] |= set(stored)
        events = CacheEvents(self.sequences[engine], stored, evicted)
        if fate == "lost":
            self.sequences[engine] += 1
        else:
            for _ in range(int(fate or 1)):
                is_gap = self.index.apply(engine, events)
                self.is_known[engine] = self.is_known[engine] and not is_gap

    @rule(engine=ENGINES, keys=KEYS, request=st.sampled_from(["r0", "r1"]))
    def send(self, engine: str, keys: list[bytes], request: str) -> None:
        self.index.count_send(engine, request, keys)
        self.sends[engine, request] = keys

    @rule(engine=ENGINES, request=st.sampled_from(["r0", "r1"]))
    def settle(self, engine: str, request: str) -> None:
        self.index.settle_send(engine, request)
        self.sends.pop((engine, request), None)

    @rule(engine=ENGINES)
    def restart(self, engine: str) -> None:
        self.index.forget(engine)
        self.sends = {send: keys for send, keys in self.sends.items() if send[0] != engine}
        self.caches[engine].clear()
        self.seed(engine, 1)

    @rule(keys=KEYS)
    def ask(self, keys: list[bytes]) -> None:
        self.resynchronise()
        expected = {}
        for engine, cache in self.caches.items():
            sent = [key for send, held in self.sends.items() if send[0] == engine for key in held]
            held = cache | set(sent)
            num_held = next((i for i, key in enumerate(keys) if key not in held), len(keys))
            if num_held:
                expected[engine] = num_held
        assert self.index.num_matching(keys) == expected

    def resynchronise(self) -> None:
        """The next events show whether some were lost; a snapshot makes up for it."""
        for engine in self.caches:
            self.change(engine, [], [], "")
            if not self.is_known[engine]:
                self.seed(engine, 1)

    @invariant()
    def is_whole(self) -> None:
        self.index.check_integrity()


IndexMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestIndex = IndexMachine.TestCase


@given(st.lists(st.tuples(ENGINES, KEYS), max_size=20), st.integers(2, 5))
def test_memory_is_bounded_whatever_engines_say(
    stored: list[tuple[str, list[bytes]]], max_keys: int
) -> None:
    index = PrefixIndex(max_keys * BYTES_PER_KEY)
    for sequence, (engine, keys) in enumerate(stored):
        index.seed(engine, CacheSnapshot(sequence, keys))
        index.check_integrity()
        assert index.num_bytes <= max_keys * BYTES_PER_KEY
    index.resize(BYTES_PER_KEY)
    index.check_integrity()


def test_the_keys_used_last_stay() -> None:
    index = PrefixIndex(8 * BYTES_PER_KEY)
    index.seed("e0", CacheSnapshot(0, keys(b"hot")))
    for sequence in range(1, 50):
        index.num_matching(keys(b"hot"))
        index.apply("e0", CacheEvents(sequence, keys(b"%d" % sequence), []))
    assert index.num_matching(keys(b"hot")) == {"e0": 1}
    assert index.num_matching(keys(b"1")) == {}


def test_an_engine_that_evicted_nothing_but_found_less_is_doubted() -> None:
    index = PrefixIndex(ROOM_FOR_ALL_BYTES)
    index.seed("e0", CacheSnapshot(0, keys(b"a", b"b")))
    index.count_send("e0", "r0", keys(b"a", b"b", b"c"))
    assert index.settle_send("e0", "r0", num_cached_keys=1)
    index.count_send("e0", "r1", keys(b"a", b"b"))
    index.apply("e0", CacheEvents(1, [], keys(b"b")))
    assert not index.settle_send("e0", "r1", num_cached_keys=1)


def test_a_part_of_a_snapshot_does_not_bring_back_what_was_evicted_meanwhile() -> None:
    index = PrefixIndex(ROOM_FOR_ALL_BYTES)
    index.seed("e0", CacheSnapshot(5, keys(b"a"), is_last=False))
    index.apply("e0", CacheEvents(6, [], keys(b"b")))
    index.seed("e0", CacheSnapshot(5, keys(b"b"), is_first=False))
    assert index.num_matching(keys(b"b")) == {}


def test_bits_of_engines_that_left_are_used_again() -> None:
    index = PrefixIndex(1000 * BYTES_PER_KEY)
    for generation in range(300):
        index.seed(f"e{generation}", CacheSnapshot(0, keys(b"a", b"b")))
        assert index.num_matching(keys(b"a", b"b")) == {f"e{generation}": 2}
        index.forget(f"e{generation}")
    index.check_integrity()
    assert max(index._engine("new").bit, 1) < 16


def test_what_is_no_key_is_not_kept() -> None:
    index = PrefixIndex(ROOM_FOR_ALL_BYTES)
    index.seed("e0", CacheSnapshot(0, [b"", b"x" * 1_000_000], is_last=False))
    index.apply("e0", CacheEvents(1, [b"short", *keys(b"a")], [b"y" * 1_000_000]))
    index.seed("e0", CacheSnapshot(0, [b"x" * 17], is_first=False))
    assert len(index) == 1
    index.check_integrity()


def test_an_engine_that_never_ends_its_snapshot_is_asked_again() -> None:
    index = PrefixIndex(1 << 30)
    index.seed("e0", CacheSnapshot(0, keys(b"a"), is_last=False))
    assert index.is_behind("e0")
    evicted = [key(b"%d" % number) for number in range(70_000)]
    assert not index.apply("e0", CacheEvents(1, [], evicted[:60_000]))
    assert index.apply("e0", CacheEvents(2, [], evicted[60_000:]))
    assert index.is_behind("e0")
    assert index.num_matching(keys(b"a")) == {}
    index.seed("e0", CacheSnapshot(2, keys(b"a")))
    assert not index.is_behind("e0")
    assert index.num_matching(keys(b"a")) == {"e0": 1}


def test_the_bound_holds_for_what_is_allocated_with_sends_and_sweeps() -> None:
    """40 engines in turn, some of which leave, and requests on their way to others."""
    max_bytes = 4_000_000
    draw = random.Random(1)
    tracemalloc.start()
    index = PrefixIndex(max_bytes)
    most = 0
    for number in range(60):
        fresh = [draw.randbytes(KEY_BYTES) for _ in range(600)]
        index.seed(f"e{number % 40}", CacheSnapshot(0, fresh))
        shared = [draw.randbytes(KEY_BYTES) for _ in range(20)]
        index.count_send(f"e{draw.randrange(40)}", f"r{number}", shared)
        if number % 7 == 0:
            index.forget(f"e{draw.randrange(40)}")
        del fresh, shared
        most = max(most, tracemalloc.get_traced_memory()[0])
        assert index.num_bytes <= max_bytes
    tracemalloc.stop()
    index.check_integrity()
    assert max_bytes / 3 < most <= max_bytes


def test_sends_alone_take_no_more_than_they_are_counted_with() -> None:
    draw = random.Random(2)
    tracemalloc.start()
    index = PrefixIndex(1)
    for number in range(200):
        sent = [draw.randbytes(KEY_BYTES) for _ in range(24)]
        index.count_send(f"e{number % 8}", f"request-{number}", sent)
    del sent
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert index.num_bytes / 3 < allocated <= index.num_bytes + 10_000
    for number in range(200):
        index.settle_send(f"e{number % 8}", f"request-{number}")
    assert index.num_bytes == 0
