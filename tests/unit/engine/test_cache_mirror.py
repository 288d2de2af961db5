from hypothesis import given
from hypothesis import strategies as st

from engine.cache_mirror import MAX_PART_KEYS, CacheMirror
from engine.messages import CacheEvents, CacheSnapshot, Medium


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


MEDIA = st.sampled_from(Medium)
EVENTS = st.tuples(MEDIA, st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
Change = tuple[Medium, set[int], set[int]]
Held = set[tuple[Medium, bytes]]


@given(before=st.lists(EVENTS), after=st.lists(EVENTS))
def test_a_snapshot_and_the_events_that_follow_say_what_each_medium_holds(
    before: list[Change], after: list[Change]
) -> None:
    mirror = CacheMirror()
    truth: Held = set()
    reader: Held = set()
    for sequence, (medium, stored, evicted) in enumerate([*before, *after], start=1):
        if sequence == len(before) + 1:
            reader = held_by(mirror.snapshot(), sequence - 1)
        events = CacheEvents(sequence, [*map(key, stored - evicted)], [*map(key, evicted)], medium)
        mirror.apply(events)
        for held in (truth, reader):
            held -= {(medium, k) for k in events.evicted}
            held |= {(medium, k) for k in events.stored}
        assert len(mirror) == len(truth)
    if after:
        assert reader == truth
    assert held_by(mirror.snapshot(), len(before) + len(after)) == truth


def held_by(parts: list[CacheSnapshot], sequence: int) -> Held:
    assert {part.sequence for part in parts} == {sequence}
    assert [part.is_first for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    return {(part.medium, k) for part in parts for k in part.keys}
