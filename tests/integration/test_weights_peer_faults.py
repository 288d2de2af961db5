"""Parents and children that lie, stall, break off or are none: bounded, counted, one clear line."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest
import xxhash

from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import PeerFailed
from cache_tiers.peer.stream import Stream
from cache_tiers.weights.chunk_messages import Answer, Ask, Chunk, No, Offer, Request, Take
from cache_tiers.weights.chunk_server import ChunkServer
from cache_tiers.weights.errors import OriginFailed, WeightsError
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile
from tests.integration.peer_stand_ins import accepting, dialed
from tests.integration.weights_peers import (
    MANIFEST,
    QUICK,
    SECRET,
    STAMP,
    Shelf,
    content_of,
    fill,
    serving,
    sizes,
)
from wire.frames import encode_frame
from wire.handshake import Handshake, Role

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

FILES = sizes(2 * CHUNK_BYTES + 1000_000, 1000_000)
MAX_S = 6.0
FOREVER_S = 1000.0

OnTake = Callable[[Stream, Take], Awaitable[None]]


def offer_of(files: list[WeightFile] = FILES, stamp: str = STAMP) -> Offer:
    return Offer(stamp, files, sum(file.num_bytes for file in files), MANIFEST)


def right_chunk(take: Take) -> bytes:
    size = next(file.num_bytes for file in FILES if file.name == take.name)
    return content_of(take.name, size)[take.index * CHUNK_BYTES :][:CHUNK_BYTES]


def framed(answer: Answer) -> bytes:
    return encode_frame(msgspec.msgpack.encode(answer))


def chunk_frame(content: bytes) -> bytes:
    return framed(Chunk(len(content), xxhash.xxh3_128_digest(content)))


async def send(stream: Stream, content: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(stream._socket, content)


async def give(stream: Stream, take: Take) -> None:
    await send(stream, chunk_frame(right_chunk(take)) + right_chunk(take))


@asynccontextmanager
async def parent(on_take: OnTake = give, offer: Answer | None = None) -> AsyncIterator[PeerAddress]:
    """One that knows the secret and answers as it likes."""

    async def serve(stream: Stream) -> None:
        await stream.shake_hands(Handshake(Role.SERVER, SECRET))
        while True:
            request = msgspec.msgpack.decode(await stream.receive_frame(), type=Request)
            if isinstance(request, Ask):
                await send(stream, framed(offer or offer_of()))
            else:
                await on_take(stream, request)

    async with accepting(serve) as address:
        yield address


async def check_fails(address: PeerAddress, words: str) -> Shelf:
    """Soon, in one line; and the next parent helps."""
    child = Shelf()
    begin_s = time.monotonic()
    with pytest.raises(OriginFailed, match=words) as failure:
        await child.bring([address])
    assert time.monotonic() - begin_s < MAX_S
    assert "\n" not in str(failure.value)
    async with serving(Shelf.whole(FILES)) as server:
        second = Shelf()
        await second.bring([address, server.address])
        assert second.are_right()
    return child


async def test_the_stand_in_is_a_parent_if_it_does_not_lie() -> None:
    async with parent() as address:
        child = Shelf()
        await child.bring([address])
        assert child.are_right()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (sizes(10**18), "offers 1000000000000000000 bytes"),
        ([WeightFile("a", -1), WeightFile("b", 2)], "less than no bytes"),
        ([WeightFile("../../etc/passwd", 1)], "a file by the name"),
        ([WeightFile("..", 1)], "a file by the name"),
        ([WeightFile("", 1)], "a file by the name"),
        ([WeightFile("a\0b", 1)], "a file by the name"),
        ([WeightFile("a\nb", 1)], "a file by the name"),
        ([WeightFile("x" * 256, 1)], "a file by the name"),
        ([WeightFile("a", 1), WeightFile("a", 1)], "two files by one name"),
        ([WeightFile(str(number), 0) for number in range(5000)], "its answer is none"),
    ],
)
async def test_files_that_can_not_be_are_not_made(files: list[WeightFile], words: str) -> None:
    async with parent(offer=offer_of(files)) as address:
        child = await check_fails(address, words)
        assert not child.files
        assert child.counts.num_lost == 1


async def test_an_offer_of_another_revision_is_not_mixed_in() -> None:
    async def give_one(stream: Stream, take: Take) -> None:
        if take.index:
            stream.interrupt()
        else:
            await give(stream, take)

    async with parent(give_one) as first, parent(offer=offer_of(stamp="revision 2")) as second:
        with pytest.raises(OriginFailed, match="another revision than the others"):
            await Shelf().bring([first, second])


async def flip(stream: Stream, take: Take) -> None:
    content = right_chunk(take)
    spoiled = bytearray(content)
    spoiled[len(content) // 2] ^= 1
    await send(stream, chunk_frame(content) + bytes(spoiled))


async def lie_about_the_digest(stream: Stream, take: Take) -> None:
    content = right_chunk(take)
    await send(stream, framed(Chunk(len(content), bytes(16))) + content)


@pytest.mark.parametrize("on_take", [flip, lie_about_the_digest])
async def test_one_whose_chunks_are_wrong_is_dropped_after_the_second(on_take: OnTake) -> None:
    async with parent(on_take) as address:
        child = await check_fails(address, "2 of its chunks came damaged")
        assert child.counts.num_corrupt >= 2
        assert child.counts.num_chunks == 0
        assert not any(file.num_arrived_bytes for file in child.files)


async def test_a_chunk_that_came_wrong_is_asked_for_elsewhere() -> None:
    num_flipped = 0

    async def flip_one(stream: Stream, take: Take) -> None:
        nonlocal num_flipped
        if (take.name, take.index) == ("file-0", 1):
            num_flipped += 1
            await flip(stream, take)
        else:
            await give(stream, take)

    child = Shelf()
    async with parent(flip_one) as address, serving(Shelf.whole(FILES)) as server:
        await child.bring([address, server.address])
        assert child.are_right()
        assert (num_flipped, child.counts.num_corrupt) == (1, 1)
        assert server.stats.num_sent >= 1  # on a slow machine it may be tried for another one
        assert child.counts.num_lost == 0


async def test_a_chunk_that_came_wrong_once_is_asked_for_again_where_nobody_else_has_it() -> None:
    num_flipped = 0

    async def flip_once(stream: Stream, take: Take) -> None:
        nonlocal num_flipped
        num_flipped += 1
        await (flip if num_flipped == 1 else give)(stream, take)

    child = Shelf()
    async with parent(flip_once) as address:
        await child.bring([address])
        assert child.are_right()


async def stall(stream: Stream, take: Take) -> None:
    await asyncio.sleep(FOREVER_S)


async def stall_in_a_chunk(stream: Stream, take: Take) -> None:
    await send(stream, chunk_frame(right_chunk(take)) + right_chunk(take)[:100])
    await asyncio.sleep(FOREVER_S)


async def drip(stream: Stream, take: Take) -> None:
    """A byte at a time, so that no single wait is long."""
    await send(stream, chunk_frame(right_chunk(take)))
    while True:
        await send(stream, b"x")
        await asyncio.sleep(0.01)


async def hang_up(stream: Stream, take: Take) -> None:
    stream.interrupt()


async def hang_up_in_a_chunk(stream: Stream, take: Take) -> None:
    await send(stream, chunk_frame(right_chunk(take)) + right_chunk(take)[:100])
    stream.interrupt()


async def answer_garbage(stream: Stream, take: Take) -> None:
    await send(stream, encode_frame(b"\x93garbage"))


async def answer_in_depth(stream: Stream, take: Take) -> None:
    await send(stream, encode_frame(b"\x93\xa5chunk" + b"\x91" * 200))


async def announce_too_much(stream: Stream, take: Take) -> None:
    await send(stream, b"\xff\xff\xff\x7f")


async def answer_another_size(stream: Stream, take: Take) -> None:
    await send(stream, chunk_frame(b"short") + b"short")


async def always_later(stream: Stream, take: Take) -> None:
    await send(stream, framed(No("later")))


async def answer_an_offer(stream: Stream, take: Take) -> None:
    await send(stream, framed(Offer("", [], 0, None)))


@pytest.mark.parametrize(
    ("on_take", "words", "count"),
    [
        (stall, "not a byte came", "num_stalled"),
        (stall_in_a_chunk, "not a byte came", "num_stalled"),
        (hang_up, "in the middle|connection lost", "num_lost"),
        (hang_up_in_a_chunk, "in the middle|connection lost", "num_lost"),
        (answer_garbage, "its answer is none", "num_lost"),
        (answer_in_depth, "its answer is none", "num_lost"),
        (announce_too_much, "announced a frame", "num_lost"),
        (answer_another_size, "something else than a chunk", "num_lost"),
        (answer_an_offer, "something else than a chunk", "num_lost"),
        (always_later, "no chunk came", ""),
    ],
)
async def test_a_wrong_answer_is_a_failure(on_take: OnTake, words: str, count: str) -> None:
    async with parent(on_take) as address:
        child = await check_fails(address, words)
        assert not count or getattr(child.counts, count) >= 1
        assert child.counts.num_chunks == 0


@pytest.mark.parametrize("on_take", [stall_in_a_chunk, hang_up_in_a_chunk])
async def test_what_broke_off_in_a_chunk_is_sealed_once_it_is_whole(on_take: OnTake) -> None:
    child = Shelf()
    async with parent(on_take) as address, serving(Shelf.whole(FILES)) as server:
        await child.bring([address, server.address])
        for file in child.files:
            file.seal()  # would raise if anybody could still write to it


async def test_what_a_slow_candidate_was_tried_with_comes_from_the_one_in_use() -> None:
    has_tried = asyncio.Event()
    num_stalled = 0

    async def note_and_stall(stream: Stream, take: Take) -> None:
        nonlocal num_stalled
        num_stalled += 1
        has_tried.set()
        await asyncio.sleep(FOREVER_S)

    child = Shelf()
    # One connection that asks for one chunk after the other leaves some for the candidate.
    limits = replace(QUICK, num_streams=1, silence_s=30.0, scout_s=0.1)
    files = sizes(*[1000_000] * 8)

    async def give_slowly(stream: Stream, take: Take) -> None:
        if take.index == 0 and take.name == "file-4":
            await has_tried.wait()
        content = content_of(take.name, 1000_000)
        await send(stream, chunk_frame(content) + content)

    offer = offer_of(files)
    async with (
        parent(give_slowly, offer) as first,
        parent(note_and_stall, offer) as second,
    ):
        async with asyncio.timeout(MAX_S):
            await child.bring([first, second], limits)
    assert child.are_right()
    assert num_stalled == 1
    assert child.counts.num_stalled == child.counts.num_lost == 0


async def test_one_that_sends_slowly_for_ever_is_left() -> None:
    child = Shelf()
    async with parent(drip) as address:
        with pytest.raises(OriginFailed, match=r"a chunk took longer than 0\.1 s"):
            await child.bring([address], replace(QUICK, chunk_s=0.1, starve_s=10.0))
    assert child.counts.num_stalled == 2


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        (Offer("x" * 300, FILES, 0, MANIFEST), "stamp is too long"),
        (Chunk(5, bytes(16)), "answers with a chunk"),
        (No("busy"), "children enough"),
        (Offer(STAMP, [], 0, None), "doesn't know the files"),
    ],
)
async def test_an_offer_that_is_none_is_a_failure(offer: Answer, words: str) -> None:
    async with parent(offer=offer) as address:
        await check_fails(address, words)


async def test_an_offer_that_is_endlessly_deep_is_a_failure() -> None:
    """What decoding would follow until the stack ends."""
    offer = msgspec.msgpack.encode(offer_of([WeightFile("a", 1, "b")]))
    deep = offer.replace(b"\x93\xa1a\x01\xa1b", b"\x94\xa1a\x01\xa1b" + b"\x91" * 5000 + b"\xc0")
    assert len(deep) > 5000

    async def serve(stream: Stream) -> None:
        await stream.shake_hands(Handshake(Role.SERVER, SECRET))
        await stream.receive_frame()
        await send(stream, encode_frame(deep))
        await asyncio.sleep(FOREVER_S)

    async with accepting(serve) as address:
        await check_fails(address, "its answer is none")


async def test_one_that_never_says_its_manifest_is_a_failure() -> None:
    async with parent(offer=replace_manifest(None)) as address:
        await check_fails(address, "never says")


def replace_manifest(manifest: bytes | None) -> Offer:
    return msgspec.structs.replace(offer_of(), manifest=manifest)


async def test_one_that_says_nothing_is_a_failure() -> None:
    async def say_nothing(stream: Stream) -> None:
        await asyncio.sleep(FOREVER_S)

    async with accepting(say_nothing) as address:
        await check_fails(address, "did not answer within 0.5 s")


async def test_what_is_none_of_ours_is_a_failure() -> None:
    async def speak_http(stream: Stream) -> None:
        stream._socket.send(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
        await asyncio.sleep(FOREVER_S)

    async with accepting(speak_http) as address:
        await check_fails(address, "announced a frame")


async def test_another_version_is_a_failure_that_says_what_to_do() -> None:
    async def be_newer(stream: Stream) -> None:
        await stream.shake_hands(Handshake(Role.SERVER, SECRET, version=7))

    async with accepting(be_newer) as address:
        await check_fails(address, "protocol version.*run the same release on both sides")


async def test_another_secret_is_a_failure_that_says_what_to_do() -> None:
    async with serving(Shelf.whole(FILES)) as server:
        address = PeerAddress("127.0.0.1", server.address.port, b"another one's secret")
        await check_fails(address, "give all processes the same one")


async def test_a_parent_that_fails_gives_no_chunk_twice() -> None:
    """What came before a death is kept."""
    num_given = 0

    async def die_after_two(stream: Stream, take: Take) -> None:
        nonlocal num_given
        num_given += 1
        if num_given > 2:
            stream.interrupt()
        await give(stream, take)

    child = Shelf()
    limits = replace(QUICK, num_streams=1)
    async with parent(die_after_two) as address, serving(Shelf.whole(FILES)) as server:
        await child.bring([address, server.address], limits)
        assert child.are_right()
        assert (child.counts.num_chunks, server.stats.num_sent) == (4, 2)


# Children


async def is_cut(stream: Stream) -> bool:
    with pytest.raises(PeerFailed):
        await asyncio.wait_for(stream.receive_frame(), MAX_S)
    return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(MAX_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


ASK = Ask("a-model", "hf:a/model", child=b"a child")


@asynccontextmanager
async def asked(server: ChunkServer) -> AsyncIterator[Stream]:
    """A child that has got its offer."""
    async with dialed(server.address) as stream:
        await stream.send_frame(msgspec.msgpack.encode(ASK))
        await stream.receive_frame()
        yield stream


@pytest.mark.parametrize(
    "message",
    [
        b"\x93garbage",
        ["not", "a", "request"],
        Take("file-0", 3, 0.0),
        Take("file-0", -1, 0.0),
        Take("file-0", 1 << 62, 0.0),
        Take("file-0", 0, float("nan")),
        Take("file-0", 0, -1.0),
        Take("x" * 5000, 0, 0.0),
        Ask("a-model", "hf:a/model", child=bytes(100)),
        Ask("a-model" * 1000, "hf:a/model"),
    ],
)
async def test_a_request_that_is_none_costs_the_connection(message: object) -> None:
    async with serving(Shelf.whole(FILES)) as server, asked(server) as stream:
        await stream.send_frame(msgspec.msgpack.encode(message))
        assert await is_cut(stream)
        await until(lambda: server.stats.num_refused == 1)


async def test_a_take_before_an_ask_costs_the_connection() -> None:
    async with serving(Shelf.whole(FILES)) as server, dialed(server.address) as stream:
        await stream.send_frame(msgspec.msgpack.encode(Take("file-0", 0, 0.0)))
        assert await is_cut(stream)


@pytest.mark.parametrize("name", ["file-9", "../file-0", "/etc/passwd", ""])
async def test_a_file_that_is_not_lent_is_absent(name: str) -> None:
    async with serving(Shelf.whole(FILES)) as server, asked(server) as stream:
        await stream.send_frame(msgspec.msgpack.encode(Take(name, 0, 0.0)))
        answer = msgspec.msgpack.decode(await stream.receive_frame(), type=Answer)
        assert answer == No("absent")


async def test_a_child_that_does_not_read_is_cut_in_time() -> None:
    limits = replace(QUICK, chunk_s=0.4)
    async with serving(Shelf.whole(FILES), limits) as server, asked(server) as stream:
        for _ in range(10):
            await stream.send_frame(msgspec.msgpack.encode(Take("file-0", 0, 0.0)))
        await until(lambda: server.stats.num_connections == 0)
        assert server.stats.num_refused == 1


async def test_a_child_that_says_nothing_more_is_let_go() -> None:
    limits = replace(QUICK, max_silence_s=0.1)
    async with serving(Shelf.whole(FILES), limits) as server, asked(server) as stream:
        assert await is_cut(stream)
        assert server.stats.num_refused == 0


async def test_closing_does_not_wait_for_chunks_or_children() -> None:
    limits = replace(QUICK, later_s=30.0, chunk_s=30.0)
    seed = Shelf()
    seed.open_files(FILES)
    async with serving(seed, limits) as server, asked(server) as waits, asked(server) as reads_not:
        await waits.send_frame(msgspec.msgpack.encode(Take("file-0", 0, 30.0)))
        fill(seed.files[0], 1)
        for _ in range(10):
            await reads_not.send_frame(msgspec.msgpack.encode(Take("file-0", 1, 30.0)))
        await asyncio.sleep(0.2)
        begin_s = time.monotonic()
        await server.close()
        assert time.monotonic() - begin_s < 1.0


async def test_connections_and_children_are_bounded() -> None:
    limits = replace(QUICK, max_connections=2)
    async with serving(Shelf.whole(FILES), limits) as server:
        async with asked(server), asked(server):
            with socket.create_connection(("127.0.0.1", server.address.port)) as extra:
                assert await asyncio.to_thread(extra.recv, 1) == b""
            assert (server.stats.num_refused, server.stats.num_children) == (1, 1)
        await until(lambda: server.stats.num_connections == 0)
        child = Shelf()
        await child.bring([server.address])
        assert child.are_right()


async def test_one_without_the_secret_gets_nothing() -> None:
    shelf = Shelf.whole(FILES)
    async with serving(shelf, replace(QUICK, connect_timeout_s=0.3)) as server:
        for opening in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(4) * 1000, b"\x08\0\0\0garbage!"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
            writer.write(opening)
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), MAX_S)
            writer.close()
        await until(lambda: server.stats.num_refused == 4)
        assert shelf.num_asks == 0


async def test_a_promotion_that_failed_on_the_parent_ends_the_childs_wait() -> None:
    seed = Shelf()
    seed.open_files(FILES)
    async with serving(seed) as server:
        bringing = asyncio.create_task(Shelf().bring([server.address]))
        await until(lambda: server.stats.num_children == 1)
        seed.files[0].fail(WeightsError("the source is gone"))
        with pytest.raises(OriginFailed):
            await asyncio.wait_for(bringing, MAX_S)
