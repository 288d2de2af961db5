from hypothesis import given
from hypothesis import strategies as st

from engine.cache_mirror import MAX_PART_KEYS, CacheMirror
from engine.messages import CacheEvents


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def test_an_empty_mirror_sends_one_part_without_keys() -> None:
    [part] = CacheMirror().snapshot()
    assert (part.sequence, part.keys, part.is_first, part.is_last) == (0, [], True, True)


def test_a_large_snapshot_comes_in_parts_of_one_sequence_and_in_order_of_storing() -> None:
    mirror = CacheMirror()
    keys = [key(number) for number in range(2 * MAX_PART_KEYS + 1)]
    mirror.apply(CacheEvents(7, keys, []))
    parts = mirror.snapshot()
    assert [len(part.keys) for part in parts] == [MAX_PART_KEYS, MAX_PART_KEYS, 1]
    assert [(p.is_first, p.is_last) for p in parts] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert {part.sequence for part in parts} == {7}
    assert [k for part in parts for k in part.keys] == keys


EVENTS = st.tuples(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))


@given(before=st.lists(EVENTS), after=st.lists(EVENTS))
def test_a_snapshot_and_the_events_that_follow_say_what_the_cache_holds(
    before: list[tuple[set[int], set[int]]], after: list[tuple[set[int], set[int]]]
) -> None:
    mirror = CacheMirror()
    truth: set[bytes] = set()
    reader: set[bytes] = set()
    for sequence, (stored, evicted) in enumerate([*before, *after], start=1):
        if sequence == len(before) + 1:
            [part] = mirror.snapshot()
            assert part.sequence == sequence - 1
            reader = set(part.keys)
        events = CacheEvents(sequence, [*map(key, stored - evicted)], [*map(key, evicted)])
        mirror.apply(events)
        truth = (truth - set(events.evicted)) | set(events.stored)
        reader = (reader - set(events.evicted)) | set(events.stored)
        assert len(mirror) == len(truth)
    if after:
        assert reader == truth
    assert set(mirror.snapshot()[0].keys) == truth
