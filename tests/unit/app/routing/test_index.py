"""The prefix index against a plain model of it."""

import random
import tracemalloc
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.routing.index import BYTES_PER_KEY, HeldKeys, PrefixIndex
from cache_tiers.keys import KEY_BYTES, BlockKey, KeySalt, block_keys, root_key, salted_root
from engine.messages import KEY_STRIDE, CacheEvents, CacheSnapshot, Medium


def key(name: bytes) -> bytes:
    """As long as keys are."""
    return name.rjust(KEY_BYTES)


def keys(*names: bytes) -> list[bytes]:
    return [key(name) for name in names]


def index_keys(root: BlockKey, token_ids: list[int], block_size_tokens: int) -> list[bytes]:
    return [*block_keys(root, token_ids, block_size_tokens)[KEY_STRIDE - 1 :: KEY_STRIDE]]


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
        self.caches: dict[str, list[set[bytes]]] = {
            engine: [set() for _ in Medium] for engine in ("e0", "e1", "e2")
        }
        self.sequences = dict.fromkeys(self.caches, 0)
        self.sends: dict[tuple[str, str], list[bytes]] = {}
        self.is_known = dict.fromkeys(self.caches, False)
        for engine in self.caches:
            self.seed(engine, 1)

    def seed(self, engine: str, num_slices: int) -> None:
        parts = [
            (medium, sorted(cache)[begin::num_slices])
            for medium, cache in zip(Medium, self.caches[engine], strict=True)
            for begin in range(num_slices)
        ]
        for number, (medium, keys) in enumerate(parts):
            snapshot = CacheSnapshot(
                self.sequences[engine], keys, number == 0, number == len(parts) - 1, medium
            )
            assert not self.index.seed(engine, snapshot)
        self.is_known[engine] = True

    @rule(engine=ENGINES, num_slices=st.integers(1, 3))
    def take_a_snapshot(self, engine: str, num_slices: int) -> None:
        self.seed(engine, num_slices)

    @rule(
        engine=ENGINES,
        medium=st.sampled_from(Medium),
        stored=KEYS,
        evicted=KEYS,
        fate=st.sampled_from(["", "", "lost", "2"]),
    )
    def change(
        self, engine: str, medium: Medium, stored: list[bytes], evicted: list[bytes], fate: str
    ) -> None:
        self.sequences[engine] += 1
        self.caches[engine][medium] -= set(evicted)
        self.caches[engine][medium] |= set(stored)
        events = CacheEvents(self.sequences[engine], stored, evicted, medium)
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
        self.caches[engine] = [set() for _ in Medium]
        self.seed(engine, 1)

    @rule(keys=KEYS)
    def ask(self, keys: list[bytes]) -> None:
        self.resynchronise()
        expected = {}
        for engine, caches in self.caches.items():
            held = {key for send, sent in self.sends.items() if send[0] == engine for key in sent}
            by_reach = []
            for cache in caches:
                held |= cache
                by_reach.append(num_without_gap(keys, held))
            if any(by_reach):
                expected[engine] = HeldKeys(*by_reach)
        assert self.index.match(keys) == expected

    @rule(engine=ENGINES, reach=st.sampled_from(Medium), keys=KEYS)
    def ask_what_is_confirmed(self, engine: str, reach: Medium, keys: list[bytes]) -> None:
        self.resynchronise()
        held = set().union(*self.caches[engine][: reach + 1])
        assert self.index.num_confirmed(engine, keys, reach) == num_without_gap(keys, held)

    def resynchronise(self) -> None:
        """The next events show whether some were lost; a snapshot makes up for it."""
        for engine in self.caches:
            self.change(engine, Medium.ACCELERATOR, [], [], "")
            if not self.is_known[engine]:
                self.seed(engine, 1)

    @invariant()
    def is_whole(self) -> None:
        self.index.check_integrity()


def num_without_gap(keys: list[bytes], held: set[bytes]) -> int:
    return next((i for i, key in enumerate(keys) if key not in held), len(keys))


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
        index.match(keys(b"hot"))
        index.apply("e0", CacheEvents(sequence, keys(b"%d" % sequence), []))
    assert index.match(keys(b"hot")) == {"e0": HeldKeys(1, 1, 1)}
    assert index.match(keys(b"1")) == {}


def test_an_engine_that_evicted_nothing_but_found_less_is_doubted() -> None:
    index = PrefixIndex(ROOM_FOR_ALL_BYTES)
    index.seed("e0", CacheSnapshot(0, keys(b"a", b"b")))
    index.count_send("e0", "r0", keys(b"a", b"b", b"c"))
    assert index.settle_send("e0", "r0", num_cached_keys=1)
    index.count_send("e0", "r1", keys(b"a", b"b"))
    index.apply("e0", CacheEvents(1, [], keys(b"b")))
    assert not index.settle_send("e0", "r1", num_cached_keys=1)


def test_a_block_that_moves_down_a_tier_counts_as_far_as_the_engine_reaches() -> None:
    index = PrefixIndex(ROOM_FOR_ALL_BYTES)
    index.seed("e0", CacheSnapshot(0, keys(b"a", b"b", b"c")))
    index.apply("e0", CacheEvents(1, [], keys(b"b")))
    index.apply("e0", CacheEvents(2, keys(b"b"), [], Medium.HOST))
    assert index.match(keys(b"a", b"b", b"c")) == {"e0": HeldKeys(1, 3, 3)}
    index.apply("e0", CacheEvents(3, [], keys(b"b"), Medium.HOST))
    index.apply("e0", CacheEvents(4, keys(b"b"), [], Medium.DISK))
    assert index.match(keys(b"a", b"b", b"c")) == {"e0": HeldKeys(1, 1, 3)}
    assert index.match(keys(b"b", b"c")) == {"e0": HeldKeys(0, 0, 2)}


def test_what_a_host_took_back_explains_fewer_hits_only_of_a_request_that_reached_for_it() -> None:
    index = PrefixIndex(ROOM_FOR_ALL_BYTES)
    index.seed("e0", CacheSnapshot(0, keys(b"a"), is_last=False))
    index.seed("e0", CacheSnapshot(0, keys(b"a", b"b"), is_first=False, medium=Medium.HOST))
    index.count_send("e0", "near", keys(b"a", b"b"))
    index.count_send("e0", "far", keys(b"a", b"b"), reach=Medium.HOST)
    assert index.settle_send("e0", "far", num_cached_keys=1), "the host had both"
    index.count_send("e0", "far", keys(b"a", b"b"), reach=Medium.HOST)
    index.apply("e0", CacheEvents(1, [], keys(b"a", b"b"), Medium.HOST))
    assert not index.settle_send("e0", "far", num_cached_keys=1)
    assert index.settle_send("e0", "near", num_cached_keys=0), "its accelerator lost nothing"


def test_other_weights_precision_block_size_layout_adapter_or_tenant_share_no_keys() -> None:
    salt = KeySalt("weights-1", "float16", 16, "layer-kv-slot-head")
    others = [
        replace(salt, weights_revision="weights-2"),
        replace(salt, kv_dtype="fp8"),
        replace(salt, block_size_tokens=32),
        replace(salt, layout="layer-slot-kv-head"),
        replace(salt, lora="adapter@1"),
        replace(salt, lora="adapter@2"),
        replace(salt, tenant="t1"),
        replace(salt, tenant="t2"),
    ]
    roots = {"e0": root_key(salt), "tenant-1": salted_root(root_key(salt), "t1")}
    roots |= {f"other-{number}": root_key(other) for number, other in enumerate(others)}
    token_ids = list(range(1024))
    prompts = {engine: index_keys(root, token_ids, 16) for engine, root in roots.items()}
    index = PrefixIndex(ROOM_FOR_ALL_BYTES)
    for engine, prompt in prompts.items():
        index.seed(engine, CacheSnapshot(0, prompt))
    for engine, prompt in prompts.items():
        assert index.match(prompt) == {engine: HeldKeys(8, 8, 8)}


def test_keys_of_another_block_size_match_nothing_and_leave_with_time() -> None:
    """The card says the block size, and the root key is made of it: no prompt is sent there."""
    token_ids = list(range(4096))
    salt = KeySalt("weights", "float16", 16, "layout")
    wrong = root_key(replace(salt, block_size_tokens=32))
    asked = index_keys(root_key(salt), token_ids, 16)
    index = PrefixIndex(100 * BYTES_PER_KEY)
    index.seed("e0", CacheSnapshot(0, index_keys(wrong, token_ids, 32)))
    index.seed("e1", CacheSnapshot(0, asked))
    assert index.match(asked) == {"e1": HeldKeys(32, 32, 32)}
    for sequence in range(1, 10):
        fresh = [key(b"%d" % (10 * sequence + number)) for number in range(10)]
        index.apply("e1", CacheEvents(sequence, [*asked, *fresh], []))
        index.check_integrity()
    assert index.match(index_keys(wrong, token_ids, 32)) == {}


def test_a_part_of_a_snapshot_does_not_bring_back_what_was_evicted_meanwhile() -> None:
    index = PrefixIndex(ROOM_FOR_ALL_BYTES)
    index.seed("e0", CacheSnapshot(5, keys(b"a"), is_last=False))
    index.apply("e0", CacheEvents(6, [], keys(b"b")))
    index.seed("e0", CacheSnapshot(5, keys(b"b"), is_first=False))
    assert index.match(keys(b"b")) == {}


def test_bits_of_engines_that_left_are_used_again() -> None:
    index = PrefixIndex(1000 * BYTES_PER_KEY)
    for generation in range(300):
        index.seed(f"e{generation}", CacheSnapshot(0, keys(b"a", b"b")))
        assert index.match(keys(b"a", b"b")) == {f"e{generation}": HeldKeys(2, 2, 2)}
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
    assert index.match(keys(b"a")) == {}
    index.seed("e0", CacheSnapshot(2, keys(b"a")))
    assert not index.is_behind("e0")
    assert index.match(keys(b"a")) == {"e0": HeldKeys(1, 1, 1)}


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
