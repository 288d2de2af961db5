from collections.abc import Iterator

import pytest

from cache_tiers.arena import Arena
from cache_tiers.slot_stock import SlotStock
from tests.unit.cache_tiers.fake_image_store import LAYOUT, FakeImageStore

SHARE = 200


@pytest.fixture
def store() -> Iterator[FakeImageStore]:
    arena = Arena(16 * 1024**2)
    yield FakeImageStore(arena)
    arena.close()


def use(stock: SlotStock, store: FakeImageStore, offsets: list[int]) -> None:
    for offset in offsets:
        assert stock.use(offset)
        store.granted.remove(offset)
        store.arena.free(offset)


def test_a_stock_is_the_whole_share_and_is_topped_up(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    offsets = stock.refill(SHARE)
    assert len(offsets) == len(stock) == SHARE
    assert stock.refill(SHARE) == []
    use(stock, store, offsets[:3])
    assert len(stock.refill(SHARE)) == 3


def test_a_share_that_shrinks_is_reached_by_use(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    held = stock.refill(SHARE)
    assert stock.refill(SHARE // 2) == []
    use(stock, store, held[: SHARE // 2])
    assert stock.refill(SHARE // 2) == []
    use(stock, store, held[SHARE // 2 : SHARE // 2 + 1])
    assert len(stock.refill(SHARE // 2)) == 1


def test_a_slot_can_be_used_once_and_only_if_it_was_granted(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    offsets = stock.refill(SHARE)
    assert stock.use(offsets[0])
    assert not stock.use(offsets[0])
    assert not stock.use(offsets[0] + 1)


def test_an_arena_without_room_grants_what_it_has_and_more_later(store: FakeImageStore) -> None:
    store.max_granted = 5
    stock = SlotStock(store, LAYOUT)
    assert len(stock.refill(SHARE)) == 5
    assert stock.refill(SHARE) == []
    store.max_granted = 1000
    assert len(stock.refill(SHARE)) == SHARE - 5


def test_giving_back_leaves_nothing_granted(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    used = stock.refill(SHARE)[0]
    stock.use(used)
    stock.give_back()
    assert store.granted == {used}
    assert len(stock) == 0
