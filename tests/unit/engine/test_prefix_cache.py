"""The prefix cache: longest match, eviction, events of every eighth block, rollback."""

from cache_tiers.keys import BlockKey
from engine.messages import KEY_STRIDE, CacheEvents
from engine.prefix_cache import PrefixCache


def make_keys(num_keys: int) -> list[BlockKey]:
    return [BlockKey(bytes([index] * 16)) for index in range(num_keys)]


def insert_chain(cache: PrefixCache, keys: list[BlockKey]) -> None:
    for index, key in enumerate(keys):
        assert cache.insert(key, block_id=index, chain_len=index + 1)
    cache.commit()


def test_the_longest_prefix_is_matched() -> None:
    cache, keys = PrefixCache(), make_keys(4)
    insert_chain(cache, keys[:3])

    assert cache.match(keys) == [0, 1, 2]
    assert cache.match([keys[0], keys[3], keys[2]]) == [0]
    assert cache.match([keys[3]]) == []
    assert cache.match([]) == []


def test_an_evicted_block_hides_the_blocks_after_it() -> None:
    cache, keys = PrefixCache(), make_keys(3)
    insert_chain(cache, keys)

    cache.evict(1)

    assert cache.match(keys) == [0]
    cache.check_integrity()


def test_a_key_keeps_its_first_block() -> None:
    cache, keys = PrefixCache(), make_keys(1)
    insert_chain(cache, keys)

    assert not cache.insert(keys[0], block_id=9, chain_len=1)
    assert cache.match(keys) == [0]


def test_events_name_every_eighth_block_and_count_up() -> None:
    cache, keys = PrefixCache(), make_keys(20)
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


def test_events_say_how_things_stand_not_how_they_came_about() -> None:
    cache, keys = PrefixCache(), make_keys(KEY_STRIDE)
    last = keys[-1]
    insert_chain(cache, keys)
    cache.evict(KEY_STRIDE - 1)
    assert cache.take_events() == CacheEvents(1, stored=[], evicted=[last])

    cache.insert(last, block_id=30, chain_len=KEY_STRIDE)
    cache.evict(30)
    cache.insert(last, block_id=31, chain_len=KEY_STRIDE)
    assert cache.take_events() == CacheEvents(2, stored=[last], evicted=[])


def test_a_rollback_forgets_only_what_is_not_committed() -> None:
    cache, keys = PrefixCache(), make_keys(KEY_STRIDE)
    insert_chain(cache, keys[:2])
    for index in range(2, KEY_STRIDE):
        cache.insert(keys[index], block_id=index, chain_len=index + 1)

    cache.rollback()

    cache.check_integrity()
    assert cache.match(keys) == [0, 1]
    assert set(cache.block_ids) == {0, 1}
    assert cache.take_events() == CacheEvents(1, stored=[], evicted=[keys[-1]])
