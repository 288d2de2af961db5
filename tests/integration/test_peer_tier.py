"""Images from one node's cache to another's, over real sockets."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from cache_tiers.block_image import BlockImage, ImageLayout, make_fingerprint
from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import MAX_KEYS, PeerFailed, PeerLimits, Request
from cache_tiers.peer.stream import Stream
from cache_tiers.peer_tier import PeerStats, PeerTier
from cache_tiers.tier import Lookup, TierError
from tests.integration.peer_stand_ins import (
    BIG,
    LAYOUT,
    Shelf,
    all_found,
    answering,
    blank_images,
    key_of,
    sealed_images,
    serving,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def are_equal(images: list[BlockImage], shelf: Shelf) -> bool:
    return all(image.memory == shelf.images[image.key].memory for image in images)


async def test_a_load_brings_what_the_peer_has() -> None:
    shelf = Shelf(num_images=10)
    images = blank_images(range(14))
    async with serving(shelf) as server:
        tier = PeerTier(server.address)
        assert await tier.load(images) == [True] * 10 + [False] * 4
        assert are_equal(images[:10], shelf)
        assert tier.stats == PeerStats(num_loaded=10, num_missing=4)
        assert (server.stats.num_sent, server.stats.num_missing) == (10, 4)
        await tier.close()


async def test_missing_images_leave_their_memory_alone() -> None:
    images = blank_images([5, 99, 6])
    async with serving(Shelf()) as server:
        tier = PeerTier(server.address)
        assert await tier.load(images) == [True, False, True]
        await tier.close()
    assert not any(images[1].memory)


async def test_large_loads_use_several_streams_and_stay_in_order() -> None:
    shelf = Shelf(40, BIG)
    images = blank_images(range(40), BIG)
    async with serving(shelf) as server:
        tier = PeerTier(server.address, PeerLimits(streams_per_load=3))
        assert all(await tier.load(images))
        assert shelf.num_calls == 3
        assert are_equal(images, shelf)
        await tier.close()


async def test_more_keys_than_a_request_holds_go_in_several() -> None:
    shelf = Shelf(4)
    async with serving(shelf) as server:
        tier = PeerTier(server.address)
        images = blank_images([*range(10, MAX_KEYS + 20), 0, 1])
        assert [
            image.key for image, ok in zip(images, await tier.load(images), strict=True) if ok
        ] == [
            key_of(0),
            key_of(1),
        ]
        lookups = await tier.find(LAYOUT, [image.key for image in images])
        assert lookups.count(Lookup.HIT) == 2
        assert lookups[-2:] == [Lookup.HIT] * 2
        await tier.close()


async def test_nothing_is_asked_for_nothing() -> None:
    shelf = Shelf()
    async with serving(shelf) as server:
        tier = PeerTier(server.address)
        assert await tier.load([]) == []
        assert shelf.num_calls == 0
        await tier.close()


async def test_find_moves_no_image() -> None:
    async with serving(Shelf(num_images=2)) as server:
        tier = PeerTier(server.address)
        found = await tier.find(LAYOUT, [key_of(1), key_of(2), key_of(0)])
        assert found == [Lookup.HIT, Lookup.MISS, Lookup.HIT]
        assert server.stats.num_sent == 0
        await tier.close()


async def test_of_an_unknown_layout_all_is_missing() -> None:
    other = ImageLayout(make_fingerprint("another model"), 2, 5000, 16)
    async with serving(Shelf()) as server:
        tier = PeerTier(server.address)
        assert await tier.load(blank_images(range(3), other)) == [False] * 3
        assert await tier.load(blank_images(range(3))) == [True] * 3
        await tier.close()


async def test_images_of_another_size_are_missing() -> None:
    smaller = ImageLayout(LAYOUT.fingerprint, 1, 100, 16)
    async with serving(Shelf()) as server:
        tier = PeerTier(server.address)
        assert await tier.load(blank_images(range(3), smaller)) == [False] * 3
        await tier.close()


async def test_a_connection_serves_many_loads() -> None:
    async with serving(Shelf(), PeerLimits(max_connections=1)) as server:
        tier = PeerTier(server.address)
        for number in range(20):
            assert await tier.load(blank_images([number])) == [True]
        assert server.stats.num_refused == 0
        await tier.close()


async def test_a_connection_that_the_peer_closed_meanwhile_is_dialed_again() -> None:
    async with serving(Shelf(), PeerLimits(max_silence_s=0.05)) as server:
        tier = PeerTier(server.address)
        assert await tier.load(blank_images([1])) == [True]
        await asyncio.sleep(0.2)
        assert await tier.load(blank_images([2])) == [True]
        assert tier.stats.num_failures == 0
        await tier.close()


async def test_a_connection_that_was_idle_for_long_is_not_used() -> None:
    streams = set()

    async def note_stream(stream: Stream, request: Request) -> None:
        streams.add(stream)
        await stream.send_images(all_found(request), sealed_images([1]))

    async with answering(note_stream) as address:
        for max_idle_s, num_streams in ((20.0, 1), (0.0, 3)):
            streams.clear()
            tier = PeerTier(address, PeerLimits(max_idle_s=max_idle_s))
            for _ in range(3):
                assert await tier.load(blank_images([1])) == [True]
            assert len(streams) == num_streams
            await tier.close()


async def test_loads_side_by_side_do_not_mix() -> None:
    shelf = Shelf(60, BIG)
    async with serving(shelf) as server:
        tier = PeerTier(server.address, PeerLimits(max_streams=3))
        loads = [blank_images(range(begin, begin + 20), BIG) for begin in (0, 20, 40, 10)]
        results = await asyncio.gather(*map(tier.load, loads))
        assert results == [[True] * 20] * 4
        assert all(are_equal(images, shelf) for images in loads)
        await tier.close()


async def test_a_cancelled_load_leaves_the_memory_alone_and_the_tier_in_order() -> None:
    shelf = Shelf(80, BIG)
    async with serving(shelf) as server:
        tier = PeerTier(server.address)
        for pause_s in (0.0, 0.001, 0.003, 0.01, 0.02):
            images = blank_images(range(80), BIG)
            load = asyncio.create_task(tier.load(images))
            await asyncio.sleep(pause_s)
            load.cancel()
            await asyncio.wait([load])
            for image in images:  # as if another block used it now
                image.memory[:] = bytes(len(image.memory))
            await asyncio.sleep(0.02)
            assert not any(any(image.memory[::4096]) for image in images)
        assert await tier.load(blank_images([3], BIG)) == [True]
        assert tier.stats.num_failures == 0
        await tier.close()


async def test_closing_ends_a_load() -> None:
    shelf = Shelf()
    shelf.pause_s = 30.0
    async with serving(shelf) as server:
        tier = PeerTier(server.address)
        load = asyncio.create_task(tier.load(blank_images([1])))
        await asyncio.sleep(0.1)
        await tier.close()
        with pytest.raises(TierError):
            await load


async def test_a_tier_that_closes_before_the_images_come_fails() -> None:
    executor = ThreadPoolExecutor(1)
    with socket.socket() as sock:
        stream = Stream(sock, executor)
        executor.shutdown()
        with pytest.raises(PeerFailed, match="this side has closed"):
            await stream.receive_images(blank_images([1]), lambda index, is_sound: None)


async def test_a_peer_is_only_read_from() -> None:
    tier = PeerTier(PeerAddress("127.0.0.1", 9, bytes(16)))
    with pytest.raises(TierError, match="only read from"):
        await tier.store(blank_images([1]))
    await tier.close()


async def test_a_secret_too_short_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        PeerTier(PeerAddress("127.0.0.1", 9, b"short"))
