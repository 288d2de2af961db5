"""Weights from another node on this machine: whole, while they arrive, and from several."""

import asyncio
from dataclasses import replace

import pytest

from cache_tiers.messages import PeerAddress
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom, OriginFailed
from cache_tiers.weights.messages import CHUNK_BYTES
from tests.integration.weights_peers import (
    MANIFEST,
    MIB,
    QUICK,
    SECRET,
    Shelf,
    fill,
    serving,
    sizes,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

FILES = sizes(3 * CHUNK_BYTES + 17, 0, 5, CHUNK_BYTES)


async def test_files_come_as_they_are() -> None:
    seed, child = Shelf.whole(FILES), Shelf()
    async with serving(seed) as server:
        files = await child.bring([server.address])
        assert [file.file for file in files] == FILES
        assert child.are_right()
        assert child.counts.num_chunks == server.stats.num_sent == 6
        assert child.counts.num_bytes == server.stats.num_sent_bytes == 4 * CHUNK_BYTES + 22


async def test_what_is_there_is_not_brought_again() -> None:
    seed, child = Shelf.whole(FILES), Shelf()

    def open_files(files):  # type: ignore[no-untyped-def]
        child.files = [ArrivingFile.in_memory(file) for file in files]
        fill(child.files[0], 1)
        fill(child.files[3], 0)
        return child.files

    child.open_files = open_files  # type: ignore[method-assign]
    async with serving(seed) as server:
        await child.bring([server.address])
        assert child.are_right()
        assert child.counts.num_chunks == 4


async def test_sealed_files_are_lent() -> None:
    seed, child = Shelf.whole(FILES), Shelf()
    for file in seed.files:
        file.seal()
    async with serving(seed) as server:
        await child.bring([server.address])
        assert child.are_right()


async def test_chunks_move_on_while_the_parent_still_receives() -> None:
    source, middle, last = Shelf(), Shelf(), Shelf()
    source.open_files(FILES[:1])
    async with serving(source) as first, serving(middle) as second:
        bringing = asyncio.gather(middle.bring([first.address]), last.bring([second.address]))
        for index in range(4):
            assert sum(file.num_arrived_bytes for file in last.files) == index * CHUNK_BYTES
            fill(source.files[0], index)
            async with asyncio.timeout(1.5):
                while not last.files or not last.files[0].has(index):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert not bringing.done()
        source.manifest = MANIFEST
        await asyncio.wait_for(bringing, 1.5)
        assert last.are_right()


async def test_children_wait_for_one_that_will_know_its_files() -> None:
    seed, child = Shelf(is_coming=True), Shelf()
    async with serving(seed) as server:
        bringing = asyncio.create_task(child.bring([server.address]))
        await asyncio.sleep(0.5)
        whole = Shelf.whole(FILES)
        seed.files, seed.manifest = whole.files, MANIFEST
        await bringing
        assert child.are_right()
        assert child.counts.num_lost == 0


async def test_the_next_parent_is_asked_where_one_has_nothing() -> None:
    nothing, seed, child = Shelf(), Shelf.whole(FILES), Shelf()
    async with serving(nothing) as first, serving(seed) as second:
        await child.bring([first.address, second.address])
        assert child.are_right()


async def test_a_model_that_nobody_has_fails_soon_and_says_so() -> None:
    async with serving(Shelf()) as first, serving(Shelf()) as second:
        with pytest.raises(OriginFailed) as failure:
            async with asyncio.timeout(1.5):
                await Shelf().bring([first.address, second.address])
        assert str(failure.value) == (
            "no other node gives a-model: "
            f"127.0.0.1:{first.address.port}: it has none of it; "
            f"127.0.0.1:{second.address.port}: it has none of it"
        )


async def test_without_parents_it_fails_at_once() -> None:
    with pytest.raises(OriginFailed, match="no other node gives a-model: none is known"):
        await Shelf().bring([])


async def test_late_comers_spread_over_a_parents_children() -> None:
    limits = replace(QUICK, max_children=1)
    source, near, late = Shelf(), Shelf(), Shelf()
    source.open_files(FILES[:1])
    async with serving(source, limits) as first, serving(near, limits) as second:
        bringing = asyncio.create_task(near.bring([first.address], limits))
        while first.stats.num_children == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        lately = asyncio.create_task(late.bring([first.address, second.address], limits))
        async with asyncio.timeout(1.5):
            while second.stats.num_children == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert first.stats.num_children == 1
        for index in range(4):
            fill(source.files[0], index)
        source.manifest = MANIFEST
        await asyncio.gather(bringing, lately)
        assert late.are_right()
        assert late.counts.num_busy > 0
        assert second.stats.num_sent == 4


async def test_too_little_room_is_said_as_it_is() -> None:
    def no_room(files):  # type: ignore[no-untyped-def]
        raise NoRoom("too little memory")

    child = Shelf()
    child.open_files = no_room  # type: ignore[method-assign]
    async with serving(Shelf.whole(FILES)) as server:
        with pytest.raises(NoRoom):
            await child.bring([server.address])


async def test_nothing_is_written_after_a_cancellation_and_what_came_stays() -> None:
    seed, child = Shelf(), Shelf()
    seed.open_files(sizes(6 * CHUNK_BYTES))
    for index in range(3):
        fill(seed.files[0], index)
    async with serving(seed) as server:
        bringing = asyncio.create_task(child.bring([server.address]))
        while not child.files or child.files[0].num_arrived_bytes < 3 * CHUNK_BYTES:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        bringing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bringing
        file = child.files[0]
        before = bytes(file.chunk(3))
        fill(seed.files[0], 3)
        await asyncio.sleep(0.3)
        assert bytes(file.chunk(3)) == before
        assert [file.has(index) for index in range(4)] == [True, True, True, False]


async def test_a_file_may_be_closed_while_it_is_lent() -> None:
    seed, child = Shelf.whole(sizes(20 * MIB)), Shelf()
    async with serving(seed) as server:
        await child.bring([server.address])
        seed.close()
        with pytest.raises(OriginFailed):
            await Shelf().bring([server.address])
    assert child.are_right()


async def test_a_secret_that_is_too_short_is_a_failure_of_that_parent() -> None:
    async with serving(Shelf.whole(FILES)) as server:
        short = PeerAddress("127.0.0.1", server.address.port, SECRET[:3])
        child = Shelf()
        await child.bring([short, server.address])
        assert child.are_right()
        with pytest.raises(OriginFailed, match="at least 16 bytes"):
            await Shelf().bring([short])
