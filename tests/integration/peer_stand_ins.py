"""A lender that counts its leases, and peers that are not what they should be."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import msgspec

from cache_tiers.block_image import BlockImage, ImageLayout, make_fingerprint
from cache_tiers.keys import BlockKey
from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import Answer, PeerFailed, PeerLimits, Request
from cache_tiers.peer.stream import Stream
from cache_tiers.peer_server import PeerServer
from wire.handshake import Handshake, Role

SECRET = b"the secret of the cluster"
LAYOUT = ImageLayout(
    make_fingerprint("a model"), num_shards=2, shard_bytes=5000, block_size_tokens=16
)
BIG = ImageLayout(make_fingerprint("a big model"), 1, 1 << 20, 16)
QUICK = PeerLimits(connect_timeout_s=0.5, timeout_s=0.5)


def key_of(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "little"))


def blank_images(numbers: Sequence[int], layout: ImageLayout = LAYOUT) -> list[BlockImage]:
    return [
        BlockImage(layout, memoryview(bytearray(layout.image_bytes)), key_of(number), 16)
        for number in numbers
    ]


def sealed_images(numbers: Sequence[int], layout: ImageLayout = LAYOUT) -> list[BlockImage]:
    images = blank_images(numbers, layout)
    for number, image in zip(numbers, images, strict=True):
        image.memory[:] = random.Random(number).randbytes(len(image.memory))
        image.write_footer()
        for rank in range(layout.num_shards):
            image.seal_shard(rank)
    return images


class Shelf:
    """A ``Lender`` of images ``0`` to ``num_images - 1``."""

    def __init__(self, num_images: int = 64, layout: ImageLayout = LAYOUT) -> None:
        self.layout = layout
        self.images = {image.key: image for image in sealed_images(range(num_images), layout)}
        self.leases: Counter[BlockKey] = Counter()
        self.num_calls = 0
        self.pause_s = 0.0

    async def lend(self, fingerprint: bytes, keys: Sequence[BlockKey]) -> list[BlockImage | None]:
        self.num_calls += 1
        await asyncio.sleep(self.pause_s)
        if fingerprint != self.layout.fingerprint:
            return [None] * len(keys)
        lent = [self.images.get(key) for key in keys]
        self.leases.update(image.key for image in lent if image)
        return lent

    def release(self, images: Sequence[BlockImage]) -> None:
        self.leases.subtract(image.key for image in images)

    def check_integrity(self) -> None:
        assert not +self.leases, "some leases never ended"
        assert not -self.leases, "some leases ended twice"


@asynccontextmanager
async def serving(shelf: Shelf, limits: PeerLimits | None = None) -> AsyncIterator[PeerServer]:
    server = PeerServer(shelf, "127.0.0.1", SECRET, limits)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        shelf.check_integrity()
        assert server.lent_bytes == 0


@asynccontextmanager
async def dialed(address: PeerAddress) -> AsyncIterator[Stream]:
    """A client that knows the secret and may now do as it likes."""
    with ThreadPoolExecutor(1) as executor:
        stream = Stream(socket.socket(), executor)
        try:
            await stream.connect(address.host, address.port)
            await stream.shake_hands(Handshake(Role.CLIENT, address.secret))
            yield stream
        finally:
            stream.interrupt()
            stream.close()


@asynccontextmanager
async def accepting(
    on_connection: Callable[[Stream], Awaitable[None]],
) -> AsyncIterator[PeerAddress]:
    """A peer that does with each connection what it likes, and then closes it."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(stream: Stream) -> None:
        try:
            with suppress(PeerFailed, OSError):
                await on_connection(stream)
        finally:
            stream.close()

    async def accept() -> None:
        while True:
            sock, _ = await loop.sock_accept(listener)
            tasks.add(asyncio.create_task(serve(Stream(sock, executor))))

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(8) as executor:
        listener.setblocking(False)
        tasks.add(asyncio.create_task(accept()))
        try:
            yield PeerAddress("127.0.0.1", listener.getsockname()[1], SECRET)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


Respond = Callable[[Stream, Request], Awaitable[None]]


@asynccontextmanager
async def answering(respond: Respond) -> AsyncIterator[PeerAddress]:
    """A peer that knows the secret and answers requests as it likes."""

    async def serve(stream: Stream) -> None:
        await stream.shake_hands(Handshake(Role.SERVER, SECRET))
        while True:
            await respond(
                stream, msgspec.msgpack.decode(await stream.receive_frame(), type=Request)
            )

    async with accepting(serve) as address:
        yield address


def all_found(request: Request) -> bytes:
    return msgspec.msgpack.encode(Answer(request.image_bytes, [True] * len(request.keys)))
