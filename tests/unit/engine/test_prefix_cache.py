"""The prefix cache: longest match, sliding windows, eviction, events of every eighth block,
rollback."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.keys import BlockKey
from engine.messages import KEY_STRIDE, CacheEvents
from engine.prefix_cache import PrefixCache
from engine.step import NO_BLOCK
from tests.unit.engine.fakes import BLOCK_SIZE, make_geometry


def make_keys(num_keys: int) -> list[BlockKey]:
    return [BlockKey(bytes([index] * 16)) for index in range(num_keys)]


def insert_chain(cache: PrefixCache, keys: list[BlockKey]) -> None:
    for index, key in enumerate(keys):
        assert cache.insert(key, 0, block_id=index, chain_len=index + 1)
    cache.commit()


def make_cache(windows: tuple[int | None, ...] = (None,)) -> PrefixCache:
    return PrefixCache(make_geometry(windows))


def match(cache: PrefixCache, keys: list[BlockKey]) -> list[int]:
    """Of one group, for a sequence that goes on behind ``keys``."""
    [table] = cache.match(keys, len(keys) * BLOCK_SIZE + 1)
    return table


def test_the_longest_prefix_is_matched() -> None:
    cache, keys = make_cache(), make_keys(4)
    insert_chain(cache, keys[:3])

    assert match(cache, keys) == [0, 1, 2]
    assert match(cache, [keys[0], keys[3], keys[2]]) == [0]
    assert match(cache, [keys[3]]) == []
    assert match(cache, []) == []


def test_an_evicted_block_hides_the_blocks_after_it() -> None:
    cache, keys = make_cache(), make_keys(3)
    insert_chain(cache, keys)

    cache.evict(1)

    assert match(cache, keys) == [0]
    cache.check_integrity()


def test_a_key_keeps_its_first_block() -> None:
    cache, keys = make_cache(), make_keys(1)
    insert_chain(cache, keys)

    assert not cache.insert(keys[0], 0, block_id=9, chain_len=1)
    assert match(cache, keys) == [0]


def test_events_name_every_eighth_block_and_count_up() -> None:
    cache, keys = make_cache(), make_keys(20)
    assert cache.take_events() is None

    insert_chain(cache, keys)
    assert cache.take_events() == CacheEvents(
        1, stored=[keys[KEY_STRIDE - 1], keys[2 * KEY_STRIDE - 1]], evicted=[]
    )
    assert cache.take_events() is None

    cache.evict(0)
    assert cache.take_events() is None
    cache.evict(KEY_STRIDE - 1)
    assert cache.take_events() == CacheEvents(2, stored=[], evicted=[keys[KEY_STRIDE - 1]])


def test_events_name_as_many_blocks_as_routers_are_to_be_told_of() -> None:
    cache, keys = PrefixCache(make_geometry((None,)), key_stride=2), make_keys(5)
    insert_chain(cache, keys)
    assert cache.take_events() == CacheEvents(1, stored=[keys[1], keys[3]], evicted=[])


def test_events_say_how_things_stand_not_how_they_came_about() -> None:
    cache, keys = make_cache(), make_keys(KEY_STRIDE)
    last = keys[-1]
    insert_chain(cache, keys)
    cache.evict(KEY_STRIDE - 1)
    assert cache.take_events() is None

    cache.insert(last, 0, block_id=30, chain_len=KEY_STRIDE)
    cache.evict(30)
    cache.insert(last, 0, block_id=31, chain_len=KEY_STRIDE)
    assert cache.take_events() == CacheEvents(1, stored=[last], evicted=[])

    cache.evict(31)
    cache.insert(last, 0, block_id=32, chain_len=KEY_STRIDE)
    assert cache.take_events() is None


def test_a_rollback_forgets_only_what_is_not_committed() -> None:
    cache, keys = make_cache(), make_keys(KEY_STRIDE)
    insert_chain(cache, keys[:2])
    for index in range(2, KEY_STRIDE):
        cache.insert(keys[index], 0, block_id=index, chain_len=index + 1)

    cache.rollback()

    cache.check_integrity()
    assert match(cache, keys) == [0, 1]
    assert set(cache.block_ids) == {0, 1}
    assert cache.take_events() is None


def test_a_rollback_takes_back_what_was_announced_too_early() -> None:
    cache, keys = make_cache(), make_keys(KEY_STRIDE)
    for index, key in enumerate(keys):
        cache.insert(key, 0, block_id=index, chain_len=index + 1)
    assert cache.take_events() == CacheEvents(1, stored=[keys[-1]], evicted=[])

    cache.rollback()

    assert cache.take_events() == CacheEvents(2, stored=[], evicted=[keys[-1]])


WINDOW = 6
"""Behind block k of 4 tokens, the next token sees blocks k - 2 and k - 1; 5 tokens before it."""


def fill(cache: PrefixCache, keys: list[BlockKey], sliding: set[int], num_full: int = 8) -> None:
    """Block ``i`` of the full group and ``100 + i`` of the sliding one, where it has them."""
    for index, key in enumerate(keys[:num_full]):
        cache.insert(key, 0, index, index + 1)
    for index in sliding:
        cache.insert(keys[index], 1, 100 + index, index + 1)
    cache.commit()


@pytest.mark.parametrize(
    ("sliding", "num_hit"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, 8),
        ({6, 7}, 8),  # what the window has passed is not missed
        ({7}, 0),
        ({5, 7}, 0),
        ({2, 3, 7}, 4),  # the longest prefix from which the window reaches back
        ({0}, 1),
        (set(), 0),
    ],
)
def test_a_prefix_needs_only_the_window_before_its_end(sliding: set[int], num_hit: int) -> None:
    cache, keys = make_cache((None, WINDOW)), make_keys(8)
    fill(cache, keys, sliding)

    full, window = cache.match(keys, 8 * BLOCK_SIZE + 1)

    assert full == list(range(num_hit))
    num_passed = max(0, num_hit - 2)
    assert window == [NO_BLOCK] * num_passed + [100 + i for i in range(num_passed, num_hit)]


def test_a_prefix_that_a_full_group_lacks_is_none() -> None:
    cache, keys = make_cache((None, WINDOW)), make_keys(8)
    fill(cache, keys, {2, 3, 6, 7}, num_full=5)

    assert len(cache.match(keys, 8 * BLOCK_SIZE + 1)[0]) == 4


def test_a_whole_prompt_needs_the_window_of_its_last_token() -> None:
    # Window 5: the token behind the 8th block sees block 7 alone, the last one in it block 6, too.
    cache, keys = make_cache((None, 5)), make_keys(8)
    fill(cache, keys, {7})

    assert len(cache.match(keys, 8 * BLOCK_SIZE + 1)[0]) == 8
    assert len(cache.match(keys, 8 * BLOCK_SIZE)[0]) == 0


def test_events_follow_the_blocks_of_full_groups() -> None:
    cache, keys = make_cache((None, WINDOW, None)), make_keys(KEY_STRIDE)
    last = keys[-1]
    cache.insert(last, 0, 1, KEY_STRIDE)
    cache.insert(last, 1, 2, KEY_STRIDE)
    assert cache.take_events() is None
    cache.insert(last, 2, 3, KEY_STRIDE)
    assert cache.take_events() == CacheEvents(1, stored=[last], evicted=[])

    cache.evict(2)
    assert cache.take_events() is None
    cache.evict(1)
    assert cache.take_events() == CacheEvents(2, stored=[], evicted=[last])
    cache.evict(3)
    assert cache.take_events() is None


def test_without_full_groups_events_follow_all_groups() -> None:
    cache, keys = make_cache((WINDOW, WINDOW)), make_keys(KEY_STRIDE)
    cache.insert(keys[-1], 0, 1, KEY_STRIDE)
    assert cache.take_events() is None
    cache.insert(keys[-1], 1, 2, KEY_STRIDE)
    assert cache.take_events() == CacheEvents(1, stored=[keys[-1]], evicted=[])


@settings(max_examples=300, deadline=None)
@given(
    windows=st.lists(st.none() | st.integers(1, 30), min_size=1, max_size=4),
    held=st.lists(st.sets(st.integers(0, 9)), min_size=4, max_size=4),
    is_whole=st.booleans(),
)
def test_the_longest_prefix_is_the_one_found_by_trying_all(
    windows: list[int | None], held: list[set[int]], is_whole: bool
) -> None:
    cache, keys = make_cache(tuple(windows)), make_keys(10)
    for group, _ in enumerate(windows):
        for index in held[group]:
            cache.insert(keys[index], group, 100 * group + index, index + 1)
    num_tokens = 10 * BLOCK_SIZE + (not is_whole)

    def is_hit(num_keys: int) -> bool:
        position = min(num_keys * BLOCK_SIZE, num_tokens - 1)
        return all(
            index in held[group]
            for group, window in enumerate(windows)
            for index in range(num_keys)
            # The block's last token is seen by the next one computed.
            if window is None or (index + 1) * BLOCK_SIZE - 1 > position - window
        )

    longest = max(num_keys for num_keys in range(11) if is_hit(num_keys))
    assert [len(table) for table in cache.match(keys, num_tokens)] == [longest] * len(windows)


EVENT_OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "evict"]), st.integers(0, 1), st.integers(0, 4))
    | st.sampled_from(["commit", "rollback", "take"]).map(lambda name: (name, 0, 0)),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(
    windows=st.sampled_from([(None,), (None, WINDOW), (None, None), (WINDOW, WINDOW)]),
    operations=EVENT_OPERATIONS,
)
def test_who_follows_the_events_knows_what_is_held(
    windows: tuple[int | None, ...], operations: list[tuple[str, int, int]]
) -> None:
    cache, keys = make_cache(windows), make_keys(5)
    counted = [group for group, window in enumerate(windows) if window is None] or [0, 1]
    held: dict[tuple[int, int], int] = {}
    committed: dict[tuple[int, int], int] = {}
    known: set[bytes] = set()
    for block_id, (name, group, number) in enumerate([*operations, ("commit", 0, 0)]):
        place = (group % len(windows), number)
        # Numbers 0 and 1 end a stride, the others don't.
        chain_len = KEY_STRIDE * (number + 1) if number < 2 else number
        if name == "insert" and place not in held:
            assert cache.insert(keys[number], place[0], block_id, chain_len)
            held[place] = block_id
        elif name == "evict" and place in committed:
            cache.evict(held.pop(place))
            del committed[place]
        elif name == "commit":
            cache.commit()
            committed = held.copy()
        elif name == "rollback":
            cache.rollback()
            held = committed.copy()
        elif name == "take":
            known = follow(known, cache.take_events())
            assert known == cache.announced_keys
            assert known == {
                keys[number] for number in (0, 1) if all((g, number) in held for g in counted)
            }
    cache.check_integrity()


def follow(known: set[bytes], events: CacheEvents | None) -> set[bytes]:
    if events is None:
        return known
    assert known.isdisjoint(events.stored)
    assert known.issuperset(events.evicted)
    assert events.stored or events.evicted
    return known.union(events.stored).difference(events.evicted)
