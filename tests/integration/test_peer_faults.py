"""Peers that lie, stall, die, or are none: each costs a bounded time, one log line and a count."""

import asyncio
import logging
import os
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import Answer, PeerLimits, Request
from cache_tiers.peer.stream import Stream
from cache_tiers.peer_tier import PeerTier
from cache_tiers.tier import TierError
from tests.integration.peer_stand_ins import (
    LAYOUT,
    QUICK,
    SECRET,
    Respond,
    Shelf,
    accepting,
    all_found,
    answering,
    blank_images,
    key_of,
    sealed_images,
    serving,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

MAX_S = QUICK.timeout_s + 1.0
"""The time limit, and what a busy machine adds."""
FOREVER_S = 3600.0


async def check_fails(
    address: PeerAddress, caplog: pytest.LogCaptureFixture, words: str, limits: PeerLimits = QUICK
) -> None:
    """A load raises in time, says why in one line, and the next one does not even ask."""
    tier = PeerTier(address, limits)
    begin_s = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(TierError, match=words):
        await tier.load(blank_images(range(8)))
    with pytest.raises(TierError, match="failed shortly before"):
        await tier.load(blank_images(range(8)))
    assert time.monotonic() - begin_s < MAX_S
    assert ["tried again from time to time" in line for line in caplog.messages] == [True]
    assert (tier.stats.num_failures, tier.stats.num_spared, tier.stats.num_loaded) == (1, 1, 0)
    await tier.close()


async def stall(stream: Stream, request: Request) -> None:
    await asyncio.sleep(FOREVER_S)


async def answer_garbage(stream: Stream, request: Request) -> None:
    await stream.send_frame(random.Random(1).randbytes(1000))


async def announce_too_much(stream: Stream, request: Request) -> None:
    stream._socket.send(b"\xff\xff\xff\x7f")


async def answer_another_size(stream: Stream, request: Request) -> None:
    await stream.send_frame(
        msgspec.msgpack.encode(Answer(request.image_bytes // 2, [True] * len(request.keys)))
    )


async def answer_for_others(stream: Stream, request: Request) -> None:
    await stream.send_frame(msgspec.msgpack.encode(Answer(request.image_bytes, [True])))


async def answer_in_depth(stream: Stream, request: Request) -> None:
    """In more levels than a parser can follow."""
    answer = [request.image_bytes, [True] * len(request.keys)]
    await stream.send_frame(
        b"\x93" + b"".join(map(msgspec.msgpack.encode, answer)) + b"\x91" * 50_000 + b"\x90"
    )


async def hang_up(stream: Stream, request: Request) -> None:
    stream.interrupt()


async def drip(stream: Stream, request: Request) -> None:
    """A byte at a time, so that no single wait is long."""
    await stream.send_frame(all_found(request))
    while True:
        stream._socket.send(b"x")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("respond", "words"),
    [
        (stall, "not done within"),
        (drip, "not done within"),
        (answer_garbage, "its answer is none"),
        (answer_in_depth, "its answer is none"),
        (announce_too_much, "announced a frame"),
        (answer_another_size, "asked for 8 images"),
        (answer_for_others, "answers for 1 of"),
        (hang_up, "closed the connection"),
    ],
)
async def test_a_wrong_answer_is_a_failure(
    respond: Respond, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(respond) as address:
        await check_fails(address, caplog, words)


async def test_what_is_none_of_ours_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def speak_http(stream: Stream) -> None:
        stream._socket.send(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
        await asyncio.sleep(FOREVER_S)

    async with accepting(speak_http) as address:
        await check_fails(address, caplog, "announced a frame")


async def test_one_that_says_nothing_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def say_nothing(stream: Stream) -> None:
        await asyncio.sleep(FOREVER_S)

    async with accepting(say_nothing) as address:
        await check_fails(address, caplog, "did not answer within|not done within")


async def test_closing_ends_a_dial() -> None:
    async def say_nothing(stream: Stream) -> None:
        await asyncio.sleep(FOREVER_S)

    async with accepting(say_nothing) as address:
        tier = PeerTier(address)
        load = asyncio.create_task(tier.load(blank_images([1])))
        await asyncio.sleep(0.05)
        begin_s = time.monotonic()
        await tier.close()
        with pytest.raises(TierError, match="closed"):
            await load
        assert time.monotonic() - begin_s < 0.8  # a dial would take 1 s


async def test_another_secret_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    async with serving(shelf) as server:
        address = PeerAddress("127.0.0.1", server.address.port, b"another one's secret")
        await check_fails(address, caplog, "secrets of the two sides differ")
        assert server.stats.num_refused == 1
        assert shelf.num_calls == 0


async def test_a_port_where_nobody_listens_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    await check_fails(PeerAddress("127.0.0.1", port, SECRET), caplog, "cannot connect")


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 1 << 16), ("a\0b", 1), ("x" * 64, 1), ("", 1)]
)
async def test_an_address_that_is_none_is_a_failure(
    host: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    await check_fails(PeerAddress(host, port, SECRET), caplog, "cannot connect")


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open none."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_too_many_open_files_are_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with no_more_files():
        await check_fails(PeerAddress("127.0.0.1", 9, SECRET), caplog, "Too many open files")


async def test_a_server_that_cannot_accept_says_so_once_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Shelf(), PeerLimits(accept_pause_s=0.01)) as server:
        with socket.socket() as client:
            with no_more_files():
                client.connect((server.address.host, server.address.port))
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.1)
        tier = PeerTier(server.address, QUICK)
        assert await tier.load(blank_images([1])) == [True]
        await tier.close()
    assert [line.partition(": ")[2][:9] for line in caplog.messages] == ["[Errno 24", "works aga"]


async def test_what_came_before_a_death_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def die_in_the_third(stream: Stream, request: Request) -> None:
        images = sealed_images(range(3))
        await stream.send_images(all_found(request), images[:2])
        stream._socket.send(images[2].memory[:5000])
        stream.interrupt()

    async with answering(die_in_the_third) as address:
        tier = PeerTier(address, QUICK)
        with caplog.at_level(logging.WARNING):
            assert await tier.load(blank_images(range(6))) == [True] * 2 + [False] * 4
        assert len(caplog.records) == 1
        assert "in the middle of an answer" in caplog.text
        assert (tier.stats.num_loaded, tier.stats.num_failures) == (2, 1)
        await tier.close()


async def test_what_came_before_a_stall_is_kept() -> None:
    async def stall_in_the_third(stream: Stream, request: Request) -> None:
        await stream.send_images(all_found(request), sealed_images(range(2)))
        await asyncio.sleep(FOREVER_S)

    async with answering(stall_in_the_third) as address:
        tier = PeerTier(address, QUICK)
        begin_s = time.monotonic()
        assert await tier.load(blank_images(range(6))) == [True] * 2 + [False] * 4
        assert time.monotonic() - begin_s < MAX_S
        await tier.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda image, other: image.memory.__setitem__(77, image.memory[77] ^ 1),
        lambda image, other: image.memory.__setitem__(slice(None), other.memory),
        lambda image, other: image.memory.__setitem__(image.layout.footer_offset + 40, 15),
        lambda image, other: image.memory.__setitem__(
            slice(None), random.Random(3).randbytes(len(image.memory))
        ),
    ],
    ids=["a flipped bit", "another block's image", "another number of tokens", "garbage"],
)
async def test_an_image_is_taken_only_if_it_proves_itself(
    spoil: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[bytes] = []

    async def lie_about_one(stream: Stream, request: Request) -> None:
        asked.extend(request.keys)
        images = sealed_images([int.from_bytes(key, "little") for key in request.keys])
        if key_of(1) in request.keys:
            spoil(images[1], images[0])
        await stream.send_images(all_found(request), images)

    async with answering(lie_about_one) as address:
        tier = PeerTier(address, QUICK)
        with caplog.at_level(logging.WARNING):
            assert await tier.load(blank_images(range(3))) == [True, False, True]
        assert "1 of its images" in caplog.text
        assert (tier.stats.num_unsound, tier.stats.num_failures) == (1, 1)
        await asyncio.sleep(1.05)  # the first pause
        asked.clear()
        assert await tier.load(blank_images(range(3))) == [True, False, True]
        assert key_of(1) not in asked
        await tier.close()


async def test_a_peer_that_works_again_is_asked_again_after_a_pause() -> None:
    is_ill = True

    async def recover(stream: Stream, request: Request) -> None:
        if is_ill:
            stream.interrupt()
        await stream.send_images(all_found(request), sealed_images([1]))

    async with answering(recover) as address:
        tier = PeerTier(address, QUICK)
        with pytest.raises(TierError):
            await tier.load(blank_images([1]))
        is_ill = False
        await asyncio.sleep(1.05)
        assert await tier.load(blank_images([1])) == [True]
        await tier.close()


async def test_a_find_fails_as_a_load_does() -> None:
    async with answering(stall) as address:
        tier = PeerTier(address, QUICK)
        with pytest.raises(TierError, match="not done within"):
            await tier.find(LAYOUT, [key_of(1)])
        with pytest.raises(TierError, match="failed shortly before"):
            await tier.find(LAYOUT, [key_of(1)])
        await tier.close()


async def test_one_stream_that_fails_costs_the_images_of_its_part_alone() -> None:
    async def die_on_the_second_half(stream: Stream, request: Request) -> None:
        numbers = [int.from_bytes(key, "little") for key in request.keys]
        if 7 in numbers:
            stream.interrupt()
            return
        await stream.send_images(all_found(request), sealed_images(numbers))

    limits = PeerLimits(timeout_s=2.0, streams_per_load=2, min_stream_bytes=1)
    async with answering(die_on_the_second_half) as address:
        tier = PeerTier(address, limits)
        assert await tier.load(blank_images(range(8))) == [True] * 4 + [False] * 4
        assert tier.stats.num_failures == 1
        await tier.close()
