"""Images from a node in another process, beside raw TCP from another process over as many streams.

Must not know engines.
"""

import asyncio
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.cache_tiers_images import LAYOUT, aligned_memory, fill, make_images
from benchmarks.cache_tiers_pairs import Pairs
from benchmarks.result import CaseResult, ResultError
from cache_tiers.block_image import BlockImage
from cache_tiers.keys import BlockKey
from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import PeerLimits
from cache_tiers.peer_server import PeerServer
from cache_tiers.peer_tier import PeerTier

_HOST = "127.0.0.1"
_SECRET = b"the secret of a benchmark"
_LENGTH_BYTES = 8
_START_S = 60.0
NUM_STREAMS = PeerLimits().streams_per_load


class AllImages:
    """A ``Lender`` of images that nobody evicts."""

    def __init__(self, images: Sequence[BlockImage]) -> None:
        self._images = {image.key: image for image in images}

    async def lend(self, fingerprint: bytes, keys: Sequence[BlockKey]) -> list[BlockImage | None]:
        return [self._images.get(key) for key in keys]

    def release(self, images: Sequence[BlockImage]) -> None:
        """They stay as they are."""


class RawTcp:
    """The limit: a client of ``serve_raw``; each stream brings an equal part of what is asked."""

    def __init__(self, port: int, num_bytes: int) -> None:
        self._streams = [socket.create_connection((_HOST, port)) for _ in range(NUM_STREAMS)]
        self._memory = aligned_memory(num_bytes)

    def seconds(self) -> float:
        """Of receiving as many bytes as there is memory."""
        begins = range(0, len(self._memory), -(-len(self._memory) // NUM_STREAMS))
        threads = [
            threading.Thread(
                target=self._receive, args=(stream, self._memory[begin:][: begins.step])
            )
            for stream, begin in zip(self._streams, begins, strict=True)
        ]
        started_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started_s

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    @staticmethod
    def _receive(stream: socket.socket, part: memoryview) -> None:
        stream.sendall(len(part).to_bytes(_LENGTH_BYTES, "little"))
        while part:
            part = part[stream.recv_into(part, 0, socket.MSG_WAITALL) :]


def measure_peer(num_images: int, num_pairs: int) -> list[CaseResult]:
    """``peer_restore_over_tcp``."""
    num_bytes = num_images * LAYOUT.image_bytes
    images = make_images(num_images, aligned_memory(num_bytes))
    pairs = Pairs()
    with (
        _process(serve_images, num_images) as peer_port,
        _process(serve_raw, num_bytes) as raw_port,
        asyncio.Runner() as runner,
    ):
        raw = RawTcp(raw_port, num_bytes)
        tier = runner.run(_make_tier(peer_port))

        async def load() -> float:
            started_s = time.perf_counter()
            are_sound = await tier.load(images)
            seconds = time.perf_counter() - started_s
            assert all(are_sound)
            return seconds

        Pairs().add(lambda: runner.run(load()), raw.seconds)  # once to connect
        for _ in range(num_pairs):
            pairs.add(lambda: runner.run(load()), raw.seconds)
        runner.run(tier.close())
        raw.close()
    return [pairs.rates(num_bytes, "peer_restore_over_tcp", f"{NUM_STREAMS} TCP streams")]


@contextmanager
def raw_tcp(num_bytes: int) -> Iterator[RawTcp]:
    """From another process."""
    with _process(serve_raw, num_bytes) as port:
        raw = RawTcp(port, num_bytes)
        raw.seconds()
        yield raw
        raw.close()


def serve_raw(pipe: Connection, num_bytes: int) -> None:
    """Of each request of a length so many bytes, until the process is killed."""
    memory = aligned_memory(num_bytes)

    def answer(stream: socket.socket) -> None:
        while request := stream.recv(_LENGTH_BYTES, socket.MSG_WAITALL):
            stream.sendall(memory[: int.from_bytes(request, "little")])

    listener = socket.create_server((_HOST, 0))
    pipe.send(listener.getsockname()[1])
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=answer, args=(stream,), daemon=True).start()


def serve_images(pipe: Connection, num_images: int) -> None:
    """A ``PeerServer``, until the process is killed."""
    images = make_images(num_images, aligned_memory(num_images * LAYOUT.image_bytes))
    fill(images)

    async def serve() -> None:
        server = PeerServer(AllImages(images), _HOST, _SECRET)
        await server.start()
        pipe.send(server.address.port)
        await asyncio.Event().wait()

    asyncio.run(serve())


@contextmanager
def _process(serve: Callable[[Connection, int], None], num: int) -> Iterator[int]:
    """A process that sends its port."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs, num), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_S):
            raise ResultError(f"{serve.__name__} did not start within {_START_S:g} s")
        yield ours.recv()
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


async def _make_tier(port: int) -> PeerTier:
    return PeerTier(PeerAddress(_HOST, port, _SECRET), PeerLimits(timeout_s=10.0))
