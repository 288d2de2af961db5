import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from cache_tiers.arena import Arena
from cache_tiers.block_image import ImageLayout
from cache_tiers.engine_claims import ProtocolViolation
from cache_tiers.fetches import MAX_FETCHES, Fetches
from cache_tiers.messages import Cancel, Fetch, Fetched, Loaded, PeerAddress, RecomputeCost, Stored
from cache_tiers.peer_pool import PeerPool
from cache_tiers.tier import Tier, TierError
from tests.unit.cache_tiers.fake_image_store import LAYOUT, FakeImageStore, Outcome, key_of


def unreachable(address: PeerAddress) -> Tier:
    raise TierError(f"{address.host} is not to be reached")


class Engine:
    """What hangs on one connection, without it."""

    def __init__(self, store: FakeImageStore) -> None:
        self.store = store
        self.answers: list[Fetched] = []
        self.fetches = Fetches(store, LAYOUT, PeerPool(unreachable), self.answers.append)

    def ask(self, fetch_id: int, peer: PeerAddress | None = None) -> None:
        keys = [bytes(key_of(number)) for number in range(3)]
        self.fetches.start(Fetch(fetch_id, keys, 0, [], RecomputeCost(), timeout_s=1.0, peer=peer))

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def engine() -> Iterator[Engine]:
    arena = Arena(16 * 1024**2)
    store = FakeImageStore(arena)
    for number, offset in enumerate(store.grant(LAYOUT, 3)):
        store.commit(LAYOUT, Stored(offset, key_of(number), 16, number + 1, 0.1))
    store.may_fetch.set()
    yield Engine(store)
    arena.close()


async def test_what_was_fetched_is_leased_until_it_is_loaded(engine: Engine) -> None:
    engine.ask(7)
    await engine.turn()
    [answer] = engine.answers
    assert answer.fetch_id == 7
    assert [image.key for image in answer.images] == [key_of(number) for number in range(3)]
    assert answer.predicted_s == 0.25
    assert engine.store.leases.total() == 3
    loaded = Loaded(7, 3, load_s=0.1)
    engine.fetches.take_loaded(loaded)
    assert engine.store.leases.total() == 0
    assert engine.store.calls[-1] == loaded


async def test_bad_keys_are_discarded(engine: Engine) -> None:
    engine.ask(1)
    await engine.turn()
    engine.fetches.take_loaded(Loaded(1, 1, load_s=0.1, bad_keys=[key_of(1)]))
    assert ("discard", key_of(1)) in engine.store.calls
    assert engine.store.leases.total() == 0


async def test_a_cancelled_fetch_is_never_answered_and_leases_nothing(engine: Engine) -> None:
    engine.store.may_fetch.clear()
    engine.ask(1)
    await engine.turn()
    engine.fetches.cancel(Cancel(1))
    engine.store.may_fetch.set()
    await engine.turn()
    assert engine.answers == []
    assert len(engine.fetches) == engine.store.leases.total() == 0


async def test_what_comes_in_spite_of_a_cancel_is_released(engine: Engine) -> None:
    class Stubborn(FakeImageStore):
        async def fetch(self, layout: ImageLayout, fetch: Fetch, peer: Tier | None) -> Outcome:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await super().fetch(layout, fetch, peer)

    stubborn = Engine(Stubborn(engine.store.arena, engine.store.may_fetch))
    stubborn.store.images = engine.store.images
    stubborn.ask(1)
    await engine.turn()
    stubborn.fetches.cancel(Cancel(1))
    await engine.turn()
    assert stubborn.store.calls
    assert stubborn.answers == []
    assert stubborn.store.leases.total() == 0


async def test_a_cancel_that_crosses_the_answer_ends_its_leases(engine: Engine) -> None:
    engine.ask(1)
    await engine.turn()
    engine.fetches.cancel(Cancel(1))
    assert engine.store.leases.total() == 0
    engine.fetches.cancel(Cancel(1))
    assert len(engine.fetches) == 0


async def test_the_end_cancels_what_runs_and_releases_what_was_answered(engine: Engine) -> None:
    engine.ask(1)
    await engine.turn()
    engine.store.may_fetch.clear()
    engine.ask(2)
    await engine.turn()
    engine.fetches.end()
    assert engine.store.leases.total() == 0
    await engine.fetches.wait_ended()
    assert [answer.fetch_id for answer in engine.answers] == [1]


async def test_a_fetch_that_fails_is_answered_with_nothing(engine: Engine) -> None:
    class Broken(FakeImageStore):
        async def fetch(self, layout: ImageLayout, fetch: Fetch, peer: Tier | None) -> Outcome:
            raise RuntimeError("a bug")

    broken = Engine(Broken(engine.store.arena))
    broken.ask(1)
    engine.ask(1, peer=PeerAddress("nowhere", 1, b""))
    await engine.turn()
    assert broken.answers == engine.answers == [Fetched(1, [], 0.0, 0.0)]
    engine.fetches.take_loaded(Loaded(1, 0, load_s=0.0))


async def test_what_can_not_be_meant_is_a_violation(engine: Engine) -> None:
    with pytest.raises(ProtocolViolation, match="never asked"):
        engine.fetches.cancel(Cancel(0))
    engine.ask(5)
    with pytest.raises(ProtocolViolation, match="fetch id 5 after 5"):
        engine.ask(5)
    with pytest.raises(ProtocolViolation, match="before it was answered"):
        engine.fetches.take_loaded(Loaded(5, 0, load_s=0.0))
    with pytest.raises(ProtocolViolation, match="never asked"):
        engine.fetches.take_loaded(Loaded(6, 0, load_s=0.0))
    await engine.turn()
    with pytest.raises(ProtocolViolation, match="did not bring"):
        engine.fetches.take_loaded(Loaded(5, 3, load_s=0.0, bad_keys=[key_of(9)]))
    assert engine.store.leases.total() == 0


async def test_fetches_of_one_engine_are_bounded(engine: Engine) -> None:
    engine.store.may_fetch.clear()
    for fetch_id in range(MAX_FETCHES):
        engine.ask(fetch_id)
    with pytest.raises(ProtocolViolation, match="more than"):
        engine.ask(MAX_FETCHES)
    engine.fetches.end()
    await engine.fetches.wait_ended()
