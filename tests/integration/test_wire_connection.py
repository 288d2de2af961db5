import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wire.connection import Connection, adopt, connect
from wire.endpoint import Endpoint
from wire.errors import ConnectionClosed, WireError
from wire.frames import HEADER_BYTES, HEARTBEAT, encode_frame
from wire.handshake import Handshake, Role
from wire.limits import Limits
from wire.listener import ConnectionHandler, Listener, listen
from wire.pipe import SyncPipe

pytestmark = pytest.mark.integration

SECRET = b"the secret of the cluster"
HELLO_FRAME_BYTES = len(encode_frame(Handshake(Role.CLIENT, SECRET).hello()))
QUICK = Limits(heartbeat_period_s=0.02, heartbeat_timeout_s=0.2, handshake_timeout_s=0.3)


@pytest.fixture
def unix_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        yield Path(folder)


@contextlib.asynccontextmanager
async def listening(
    handler: ConnectionHandler, unix_path: Path | None = None, limits: Limits | None = None
) -> AsyncIterator[Listener]:
    listener = await listen(
        "127.0.0.1", unix_path, secret=SECRET, on_connection=handler, limits=limits
    )
    try:
        yield listener
    finally:
        await listener.close()


async def echo(connection: Connection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            connection.send(await connection.receive())


async def greet_at_length(connection: Connection) -> None:
    connection.send(bytes(3_000_000))
    await connection.wait_closed()


async def idle(connection: Connection) -> None:
    await connection.wait_closed()


async def reason_of_end(connection: Connection) -> str:
    while True:
        try:
            await connection.receive()
        except ConnectionClosed as closed:
            return closed.reason


async def test_frames_go_both_ways_over_tcp_and_over_the_unix_socket(unix_dir: Path) -> None:
    async with listening(echo, unix_dir / "engine.sock") as listener:
        for endpoint in (listener.endpoint, replace(listener.endpoint, unix_path=None)):
            connection = await connect(endpoint, secret=SECRET)
            payloads = [b"x" * size for size in (1, 100, 70_000, 2_000_000)]
            for payload in payloads:
                connection.send(payload)
            assert [await connection.receive() for _ in payloads] == payloads
            connection.close("done")
            await connection.wait_closed()


async def test_a_stale_unix_socket_falls_back_to_tcp(unix_dir: Path) -> None:
    stale = unix_dir / "stale.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(stale))
    async with listening(echo) as listener:
        connection = await connect(replace(listener.endpoint, unix_path=str(stale)), secret=SECRET)
        connection.send(b"here")
        assert await connection.receive() == b"here"
        connection.close("done")


async def test_a_large_first_frame_may_follow_the_handshake_at_once() -> None:
    async with listening(greet_at_length) as listener:
        connection = await connect(listener.endpoint, secret=SECRET)
        assert len(await connection.receive()) == 3_000_000
        connection.close("done")


async def test_another_secret_is_refused_on_both_sides_before_any_handler_runs() -> None:
    served: list[Connection] = []

    async def handler(connection: Connection) -> None:
        served.append(connection)

    async with listening(handler) as listener:
        with pytest.raises(WireError, match="secrets of the two sides differ"):
            await connect(listener.endpoint, secret=b"some other secret")
    assert served == []


async def test_a_peer_that_does_not_shake_hands_in_time_is_dropped() -> None:
    async with listening(echo, limits=QUICK) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.endpoint.port)
        await asyncio.wait_for(reader.read(), 2)  # its hello, then the end
        writer.close()
        await writer.wait_closed()


async def test_an_oversized_frame_before_the_handshake_ends_the_connection() -> None:
    async with listening(echo) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.endpoint.port)
        writer.write(encode_frame(bytes(1000)))
        await asyncio.wait_for(reader.read(), 2)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Stranger:
    """Speaks to a listener byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def shake_hands(self) -> bytes:
        """Returns what was sent."""
        client = Handshake(Role.CLIENT, SECRET)
        server_hello = (await self.reader.readexactly(HELLO_FRAME_BYTES))[HEADER_BYTES:]
        proof = client.receive(server_hello)
        assert proof is not None
        sent = encode_frame(client.hello()) + encode_frame(proof)
        self.writer.write(sent)
        await self.reader.readexactly(len(encode_frame(proof)))
        return sent

    async def rest(self) -> bytes:
        """What still comes, up to the end."""
        async with asyncio.timeout(2):
            return await self.reader.read()


@contextlib.asynccontextmanager
async def stranger_at(listener: Listener) -> AsyncIterator[Stranger]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.endpoint.port)
    try:
        yield Stranger(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Served:
    """A handler that keeps what came, and how each connection ended."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.reasons: asyncio.Queue[str] = asyncio.Queue()
        self.num_connections = 0

    async def __call__(self, connection: Connection) -> None:
        self.num_connections += 1
        try:
            while True:
                self.payloads.append(await connection.receive())
        except ConnectionClosed as closed:
            self.reasons.put_nowait(closed.reason)


async def test_a_frame_over_the_limit_ends_the_connection_before_it_comes() -> None:
    served = Served()
    limits = Limits(max_frame_bytes=1000)
    async with listening(served, limits=limits) as listener, stranger_at(listener) as stranger:
        await stranger.shake_hands()
        stranger.writer.write((1001).to_bytes(HEADER_BYTES, "little"))
        with contextlib.suppress(ConnectionError):
            await stranger.rest()
        reason = await asyncio.wait_for(served.reasons.get(), 2)
        assert "frame of 1001 bytes is over the limit of 1000" in reason


async def test_a_frame_that_was_cut_off_is_never_handed_out() -> None:
    served = Served()
    async with listening(served) as listener, stranger_at(listener) as stranger:
        await stranger.shake_hands()
        stranger.writer.write(encode_frame(b"whole") + encode_frame(b"cut off")[:-1])
        stranger.writer.write_eof()
        await asyncio.wait_for(served.reasons.get(), 2)
    assert served.payloads == [b"whole"]


async def test_a_replayed_handshake_runs_no_handler() -> None:
    served = Served()
    async with listening(served) as listener:
        async with stranger_at(listener) as stranger:
            recorded = await stranger.shake_hands()
        async with stranger_at(listener) as stranger:
            stranger.writer.write(recorded + encode_frame(b"do as before"))
            assert b"secrets of the two sides differ" in await stranger.rest()
        assert (served.num_connections, served.payloads) == (1, [])


async def test_what_follows_an_unfinished_handshake_reaches_no_handler() -> None:
    served = Served()
    async with listening(served) as listener, stranger_at(listener) as stranger:
        hello = Handshake(Role.CLIENT, SECRET).hello()
        stranger.writer.write(encode_frame(hello) + encode_frame(b"no proof"))
        await stranger.rest()
        assert served.num_connections == 0


async def test_another_version_is_told_what_to_do() -> None:
    served = Served()
    async with listening(served) as listener, stranger_at(listener) as stranger:
        stranger.writer.write(encode_frame(Handshake(Role.CLIENT, SECRET, version=99).hello()))
        assert b"run the same release on both sides" in await stranger.rest()
        assert served.num_connections == 0


async def test_a_flood_of_heartbeats_delays_others_little_and_piles_up_nowhere() -> None:
    served = Served()
    async with listening(served) as listener, stranger_at(listener) as stranger:
        await stranger.shake_hands()
        other = await connect(listener.endpoint, secret=SECRET)
        stranger.writer.write(HEARTBEAT * 500_000 + encode_frame(b"after the flood"))
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        other.send(b"meanwhile")
        async with asyncio.timeout(5):
            while len(served.payloads) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert sorted(served.payloads) == [b"after the flood", b"meanwhile"]
        assert loop.time() - started_s < 3
        other.close("done")


async def test_nobody_listening_is_an_error_that_names_the_endpoint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(WireError, match=rf"cannot connect to 127\.0\.0\.1:{port}"):
        await connect(Endpoint("127.0.0.1", port), secret=SECRET)


async def test_heartbeats_keep_an_idle_connection_open() -> None:
    async with listening(echo, limits=QUICK) as listener:
        connection = await connect(listener.endpoint, secret=SECRET, limits=QUICK)
        await asyncio.sleep(0.6)
        connection.send(b"still here")
        assert await connection.receive() == b"still here"
        connection.close("done")


async def test_a_silent_peer_is_dropped() -> None:
    mute = replace(QUICK, heartbeat_period_s=None)
    async with listening(idle, limits=mute) as listener:
        connection = await connect(listener.endpoint, secret=SECRET, limits=QUICK)
        assert "nothing came from the peer for 0.2 s" in await reason_of_end(connection)


async def test_a_peer_that_does_not_read_is_cut_and_nobody_waits_for_it() -> None:
    cut: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def flood(connection: Connection) -> None:
        while connection.close_reason is None:
            connection.send(bytes(100_000))
            assert connection.queued_bytes <= limits.max_send_queue_bytes
            await asyncio.sleep(0)
        cut.set_result(connection.close_reason)

    limits = Limits(max_send_queue_bytes=1_000_000)
    async with listening(flood, limits=limits) as listener:
        lazy = Limits(max_receive_queue_bytes=200_000)
        connection = await connect(listener.endpoint, secret=SECRET, limits=lazy)
        assert "does not keep up" in await asyncio.wait_for(cut, 5)
        connection.close("done")


async def test_a_slow_reader_gets_everything_once_it_reads() -> None:
    async def burst(connection: Connection) -> None:
        for index in range(40):
            connection.send(bytes([index]) * 100_000)
        await connection.wait_closed()

    async with listening(burst) as listener:
        lazy = Limits(max_receive_queue_bytes=200_000)
        connection = await connect(listener.endpoint, secret=SECRET, limits=lazy)
        await asyncio.sleep(0.1)
        assert [(await connection.receive())[0] for _ in range(40)] == list(range(40))
        connection.close("done")


async def test_what_was_sent_before_close_arrives() -> None:
    async def farewell(connection: Connection) -> None:
        connection.send(b"x" * 1_000_000)

    async with listening(farewell) as listener:
        connection = await connect(listener.endpoint, secret=SECRET)
        assert len(await connection.receive()) == 1_000_000
        assert await reason_of_end(connection) == "the peer closed the connection"


async def test_closing_the_listener_ends_its_connections() -> None:
    async with listening(echo) as listener:
        connection = await connect(listener.endpoint, secret=SECRET)
    assert await reason_of_end(connection) == "the peer closed the connection"


async def test_a_closed_listener_starts_no_handler_for_a_late_handshake() -> None:
    served: list[Connection] = []

    async def handler(connection: Connection) -> None:
        served.append(connection)

    client = Handshake(Role.CLIENT, SECRET)
    async with listening(handler) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.endpoint.port)
        server_hello = (await reader.readexactly(HELLO_FRAME_BYTES))[HEADER_BYTES:]
    writer.write(encode_frame(client.hello()) + encode_frame(client.receive(server_hello) or b""))
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 2) == b"", "the listener went on shaking hands"
    assert served == []
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_socket_pair_joins_an_event_loop_and_a_plain_loop() -> None:
    ours, theirs = socket.socketpair()
    connection, pipe = await adopt(ours), SyncPipe(theirs)
    connection.send(b"down")
    await asyncio.sleep(0.01)
    assert pipe.poll(1) == [b"down"]
    pipe.send(b"up")
    assert await connection.receive() == b"up"
    pipe.close()
    assert await reason_of_end(connection) == "the peer closed the connection"
