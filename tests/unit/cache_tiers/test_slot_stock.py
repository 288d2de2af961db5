from collections.abc import Iterator

import pytest

from cache_tiers.arena import Arena
from cache_tiers.slot_stock import MIN_SLOTS, SlotStock
from tests.unit.cache_tiers.fake_image_store import LAYOUT, FakeImageStore

MOST = 200


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


def test_a_stock_starts_small_and_is_topped_up(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    offsets = stock.refill(MOST)
    assert len(offsets) == len(stock) == MIN_SLOTS
    assert stock.refill(MOST) == []
    use(stock, store, offsets[:3])
    assert len(stock.refill(MOST)) == 3


def test_a_burst_doubles_the_stock_up_to_the_share(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    sizes = []
    held = stock.refill(MOST)
    for _ in range(5):
        use(stock, store, held)
        held = stock.refill(MOST)
        sizes.append(len(stock))
    assert sizes == [64, 128, 200, 200, 200]


def test_an_unused_stock_wants_less_with_time(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    held = stock.refill(MOST)
    for _ in range(3):
        use(stock, store, held)
        held = stock.refill(MOST)
    stock.shrink()
    for _ in range(30):
        stock.shrink()
    use(stock, store, held[: MOST - 10])
    stock.refill(MOST)
    assert len(stock) < MOST // 2


def test_a_slot_can_be_used_once_and_only_if_it_was_granted(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    offsets = stock.refill(MOST)
    assert stock.use(offsets[0])
    assert not stock.use(offsets[0])
    assert not stock.use(offsets[0] + 1)


def test_an_arena_without_room_grants_what_it_has_and_more_later(store: FakeImageStore) -> None:
    store.max_granted = 5
    stock = SlotStock(store, LAYOUT)
    assert len(stock.refill(MOST)) == 5
    assert stock.refill(MOST) == []
    store.max_granted = 1000
    assert len(stock.refill(MOST)) == MIN_SLOTS - 5


def test_giving_back_leaves_nothing_granted(store: FakeImageStore) -> None:
    stock = SlotStock(store, LAYOUT)
    used = stock.refill(MOST)[0]
    stock.use(used)
    stock.give_back()
    assert store.granted == {used}
    assert len(stock) == 0
