"""Clients that ask for too much, do not read, or are none: no lease outlasts its bound."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.peer.messages import MAX_KEYS, Answer, PeerFailed, PeerLimits, Request
from cache_tiers.peer.stream import Stream
from cache_tiers.peer_server import PeerServer
from cache_tiers.peer_tier import PeerTier
from cache_tiers.tier import TierError
from tests.integration.peer_stand_ins import (
    BIG,
    LAYOUT,
    Shelf,
    blank_images,
    dialed,
    key_of,
    serving,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

MAX_WAIT_S = 5.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def ask(num_keys: int, timeout_s: float) -> Request:
    keys = [bytes(key_of(number)) for number in range(num_keys)]
    return Request(BIG.fingerprint, BIG.image_bytes, keys, timeout_s, with_images=True)


async def send(stream: Stream, message: object) -> None:
    await stream.send_frame(msgspec.msgpack.encode(message))


async def is_cut(stream: Stream) -> bool:
    """Whether the server closes the connection without a word."""
    with pytest.raises(PeerFailed):
        await asyncio.wait_for(stream.receive_frame(), MAX_WAIT_S)
    return True


async def test_a_client_that_does_not_read_loses_its_leases_in_time() -> None:
    shelf = Shelf(40, BIG)
    async with serving(shelf) as server, dialed(server.address) as stream:
        begin_s = time.monotonic()
        await send(stream, ask(40, timeout_s=0.4))
        await until(lambda: shelf.leases.total() == 40)
        assert server.lent_bytes == 40 * BIG.image_bytes
        await until(lambda: shelf.leases.total() == 0)
        assert 0.3 < time.monotonic() - begin_s < 2.0
        assert server.stats.num_refused == 1


async def test_the_server_bounds_what_a_client_calls_its_patience() -> None:
    shelf = Shelf(40, BIG)
    limits = PeerLimits(max_answer_s=0.3)
    async with serving(shelf, limits) as server, dialed(server.address) as stream:
        await send(stream, ask(40, timeout_s=1e9))
        await until(lambda: shelf.leases.total() == 40)
        await until(lambda: shelf.leases.total() == 0)


async def test_a_client_that_dies_in_an_answer_loses_its_leases_at_once() -> None:
    shelf = Shelf(40, BIG)
    async with serving(shelf) as server:
        async with dialed(server.address) as stream:
            await send(stream, ask(40, timeout_s=30.0))
            await until(lambda: shelf.leases.total() == 40)
        await until(lambda: shelf.leases.total() == 0)


async def test_closing_ends_answers_and_leases() -> None:
    shelf = Shelf(40, BIG)
    async with serving(shelf) as server, dialed(server.address) as stream:
        await send(stream, ask(40, timeout_s=30.0))
        await until(lambda: shelf.leases.total() == 40)
        begin_s = time.monotonic()
        await server.close()
        assert time.monotonic() - begin_s < 1.0
        assert shelf.leases.total() == 0


async def test_a_lender_that_takes_too_long_costs_the_connection() -> None:
    shelf = Shelf(4, BIG)
    shelf.pause_s = 30.0
    async with serving(shelf) as server, dialed(server.address) as stream:
        await send(stream, ask(1, timeout_s=0.2))
        assert await is_cut(stream)


async def test_what_is_beyond_the_lent_bytes_is_missing() -> None:
    shelf = Shelf(10, BIG)
    limits = PeerLimits(max_lent_bytes=4 * BIG.image_bytes + 5)
    async with serving(shelf, limits) as server:
        tier = PeerTier(server.address, PeerLimits(streams_per_load=1))
        assert await tier.load(blank_images(range(10), BIG)) == [True] * 4 + [False] * 6
        assert await tier.load(blank_images(range(5, 10), BIG)) == [True] * 4 + [False]
        await tier.close()


async def test_a_lender_that_has_nothing_for_now_means_missing() -> None:
    class Empty(Shelf):
        async def lend(self, fingerprint, keys):  # type: ignore[no-untyped-def]
            raise TierError("the arena is full")

    async with serving(Empty()) as server:
        tier = PeerTier(server.address)
        assert await tier.load(blank_images(range(3))) == [False] * 3
        await tier.close()


@pytest.mark.parametrize(
    "message",
    [
        b"\x93garbage",
        Request(LAYOUT.fingerprint, 0, [], 1.0, with_images=True),
        Request(LAYOUT.fingerprint, -4096, [bytes(16)], 1.0, with_images=True),
        Request(LAYOUT.fingerprint, 4096, [bytes(16)], 0.0, with_images=True),
        Request(LAYOUT.fingerprint, 4096, [bytes(16)], float("nan"), with_images=True),
        Request(LAYOUT.fingerprint, 4096, [b""] * (MAX_KEYS + 1), 1.0, with_images=True),
        ["not", "a", "request"],
    ],
)
async def test_a_request_that_is_none_is_not_answered(message: object) -> None:
    shelf = Shelf()
    async with serving(shelf) as server, dialed(server.address) as stream:
        await send(stream, message)
        assert await is_cut(stream)
        assert shelf.num_calls == 0
        assert server.stats.num_refused == 1


async def test_a_request_of_more_levels_than_can_be_parsed_is_not_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = Request(LAYOUT.fingerprint, 4096, [bytes(16)], 1.0, with_images=True)
    fields = msgspec.msgpack.encode(request)[1:]
    async with serving(Shelf()) as server, dialed(server.address) as stream:
        await stream.send_frame(b"\x96" + fields + b"\x91" * 50_000 + b"\x90")
        assert await is_cut(stream)
        assert server.stats.num_refused == 1
    assert not caplog.messages


async def test_a_frame_that_is_too_long_is_not_waited_for() -> None:
    async with serving(Shelf()) as server, dialed(server.address) as stream:
        stream._socket.send(b"\xff\xff\xff\x7f")
        assert await is_cut(stream)
        assert server.stats.num_refused == 1


async def test_strange_keys_are_missing() -> None:
    async with serving(Shelf()) as server, dialed(server.address) as stream:
        keys = [b"", bytes(1000), b"x"]
        await send(stream, Request(LAYOUT.fingerprint, LAYOUT.image_bytes, keys, 1.0, True))
        answer = msgspec.msgpack.decode(await stream.receive_frame(), type=Answer)
        assert answer.found == [False] * 3


async def test_a_client_without_the_secret_gets_nothing() -> None:
    shelf = Shelf()
    async with serving(shelf, PeerLimits(connect_timeout_s=0.3)) as server:
        for opening in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(4) * 1000, b"\x08\0\0\0garbage!"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
            writer.write(opening)
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), MAX_WAIT_S)
            writer.close()
        await until(lambda: server.stats.num_refused == 4)
        assert shelf.num_calls == 0


async def test_connections_are_bounded() -> None:
    async with serving(Shelf(), PeerLimits(max_connections=2)) as server:
        async with dialed(server.address), dialed(server.address):
            with socket.create_connection(("127.0.0.1", server.address.port)) as extra:
                assert await asyncio.to_thread(extra.recv, 1) == b""
            assert server.stats.num_refused == 1
        tier = PeerTier(server.address)
        await asyncio.sleep(0.05)
        assert await tier.load(blank_images([1])) == [True]
        await tier.close()


async def test_a_client_that_says_nothing_more_is_let_go() -> None:
    async with serving(Shelf(), PeerLimits(max_silence_s=0.1)) as server:
        async with dialed(server.address) as stream:
            assert await is_cut(stream)
        assert server.stats.num_refused == 0


@settings(max_examples=25, deadline=None)
@given(
    loads=st.lists(
        st.tuples(
            st.integers(0, 30),  # first image
            st.integers(0, 20),  # how many
            st.one_of(st.none(), st.floats(0.0, 0.01)),  # cancelled after so many seconds
        ),
        min_size=1,
        max_size=8,
    ),
    num_streams=st.integers(1, 3),
)
def test_whatever_is_cancelled_leases_end_and_images_are_right(
    loads: list[tuple[int, int, float | None]], num_streams: int
) -> None:
    async def run() -> None:
        shelf = Shelf(40)
        limits = PeerLimits(streams_per_load=num_streams, max_streams=3, min_stream_bytes=1)
        async with serving(shelf) as server:
            tier = PeerTier(server.address, limits)

            async def load(begin: int, num: int, cancel_after_s: float | None) -> None:
                images = blank_images(range(begin, begin + num))
                task = asyncio.create_task(tier.load(images))
                if cancel_after_s is not None:
                    await asyncio.sleep(cancel_after_s)
                    task.cancel()
                await asyncio.wait([task])
                copies = [bytes(image.memory) for image in images]
                await asyncio.sleep(0.005)
                assert copies == [bytes(image.memory) for image in images]
                if not task.cancelled():
                    numbers = range(begin, begin + num)
                    assert task.result() == [number < 40 for number in numbers]
                    assert all(
                        image.memory == shelf.images[image.key].memory
                        for image in images
                        if image.key in shelf.images
                    )

            await asyncio.gather(*(load(*one) for one in loads))
            await until(lambda: shelf.leases.total() == 0)
            await tier.close()

    asyncio.run(run())


async def test_the_next_server_listens_where_the_last_one_did_if_it_can() -> None:
    async with serving(Shelf(1, LAYOUT)) as server:
        taken = server.address
        other = PeerServer(Shelf(1, LAYOUT), taken.host, taken.secret, port=taken.port)
        await other.start()
        assert other.address.port != taken.port
        await other.close()
    again = PeerServer(Shelf(1, LAYOUT), taken.host, taken.secret, port=taken.port)
    await again.start()
    assert again.address == taken
    await again.close()


def test_a_secret_too_short_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        PeerServer(Shelf(), "127.0.0.1", b"short")
