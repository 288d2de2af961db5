"""Whatever engines say, in whichever order: no crash, no leak, and no more bytes than allowed."""

import random
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.index import BYTES_PER_KEY, PrefixIndex
from cache_tiers.keys import KEY_BYTES
from engine.messages import CacheEvents, CacheSnapshot, Medium

ENGINES = st.sampled_from(["e0", "e1", "e2"])
KEYS = st.lists(
    st.one_of(
        st.integers(0, 15).map(lambda number: number.to_bytes(KEY_BYTES, "little")),
        st.binary(max_size=40),  # of another length than keys have, mostly
    ),
    max_size=8,
)
SEQUENCES = st.one_of(st.integers(0, 6), st.integers(-(2**63), 2**64 - 1))
MEDIA = st.sampled_from(Medium)
MESSAGES = st.one_of(
    st.builds(CacheEvents, SEQUENCES, KEYS, KEYS, MEDIA),
    st.builds(CacheSnapshot, SEQUENCES, KEYS, st.booleans(), st.booleans(), MEDIA),
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("hear"), ENGINES, MESSAGES),
        st.tuples(st.just("hear twice"), ENGINES, MESSAGES),
        st.tuples(st.just("send"), ENGINES, KEYS),
        st.tuples(st.just("settle"), ENGINES, st.integers(-3, 12)),
        st.tuples(st.just("declare dead"), ENGINES, st.none()),
    ),
    max_size=25,
)


def hear(index: PrefixIndex, engine: str, message: CacheEvents | CacheSnapshot) -> bool:
    if isinstance(message, CacheEvents):
        return index.apply(engine, message)
    return index.seed(engine, message)


@settings(max_examples=80, deadline=None)
@given(actions=ACTIONS, asked=KEYS, max_keys=st.integers(2, 30))
def test_any_messages_in_any_order_leave_the_index_whole_and_within_its_bound(
    actions: list[tuple[str, str, object]], asked: list[bytes], max_keys: int
) -> None:
    index = PrefixIndex(max_keys * BYTES_PER_KEY)
    for action, engine, what in actions:
        if isinstance(what, CacheEvents | CacheSnapshot):
            hear(index, engine, what)
            if action == "hear twice":
                hear(index, engine, what)
        elif isinstance(what, list):
            index.count_send(engine, "r", what)
        elif isinstance(what, int):
            index.settle_send(engine, "r", what)
        else:
            index.forget(engine)
        index.check_integrity()
        for held in index.match(asked).values():
            assert 0 <= held.accelerator <= held.host <= held.disk <= len(asked)
        index.check_integrity()
    for engine in ("e0", "e1", "e2"):
        index.forget(engine)
    assert index.match(asked) == {}
    index.resize(1)
    index.check_integrity()
    assert index.num_bytes <= BYTES_PER_KEY + 4


@settings(max_examples=30, deadline=None)
@given(messages=st.lists(st.builds(CacheEvents, SEQUENCES, KEYS, KEYS, MEDIA), max_size=12))
def test_events_out_of_order_are_never_believed_after_the_first_that_is_missed(
    messages: list[CacheEvents],
) -> None:
    index = PrefixIndex(1 << 20)
    index.seed("e0", CacheSnapshot(0, []))
    has_missed = False
    for expected_sequence, events in enumerate(messages, start=1):
        is_gap = events.sequence != expected_sequence
        assert index.apply("e0", events) == (is_gap and not has_missed)
        has_missed = has_missed or is_gap
        assert index.is_behind("e0") == has_missed
        if has_missed:
            assert index.match(events.stored) == {}


def test_engines_that_come_and_go_leave_nothing_behind() -> None:
    """Bits are used again however messages and losses of engines mix, and sends go with them."""
    draw = random.Random(3)
    index = PrefixIndex(2000 * BYTES_PER_KEY)
    for number in range(400):
        engine = f"engine-{number}"
        keys = [draw.randbytes(KEY_BYTES) for _ in range(20)]
        index.seed(engine, CacheSnapshot(0, keys, is_last=number % 3 == 0))
        index.apply(engine, CacheEvents(1, keys[:3], keys[3:9], draw.choice(list(Medium))))
        index.apply(engine, CacheEvents(1 + number % 4, keys, []))
        index.count_send(engine, "r", keys)
        index.forget(engine)
    index.check_integrity()
    assert index._sent.num_bytes == 0
    assert index._num_evicted == 0
    assert index._bits_in_use.bit_length() < 64


def test_snapshots_that_never_end_are_counted_in_the_bound() -> None:
    max_bytes = 3_000_000
    draw = random.Random(4)
    index = PrefixIndex(max_bytes)
    tracemalloc.start()
    for number in range(4):
        index.seed(f"e{number}", CacheSnapshot(0, [], is_last=False))
        for sequence in range(1, 5):
            evicted = [draw.randbytes(KEY_BYTES) for _ in range(1000)]
            stored = [draw.randbytes(KEY_BYTES) for _ in range(1000)]
            index.apply(f"e{number}", CacheEvents(sequence, stored, evicted))
            assert index.num_bytes <= max_bytes
    del evicted, stored
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert index._num_evicted == 16_000
    assert allocated <= max_bytes
    index.check_integrity()


def test_a_medium_that_is_none_is_refused_where_messages_are_read() -> None:
    good = msgspec.msgpack.encode(CacheEvents(1, [], [], Medium.DISK))
    assert msgspec.msgpack.decode(good, type=CacheEvents).medium is Medium.DISK
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 7"):
        msgspec.msgpack.decode(msgspec.msgpack.encode((1, [], [], 7)), type=CacheEvents)


def test_events_without_a_medium_are_the_accelerators() -> None:
    events = msgspec.msgpack.decode(msgspec.msgpack.encode((1, [], [])), type=CacheEvents)
    assert events.medium is Medium.ACCELERATOR
