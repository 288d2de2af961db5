"""A node's cache for other nodes: lends images and sends them from where they lie.

Runs on the cache's event loop; the sending itself is in threads. Whoever connects has proven to
know the secret and gets whatever is asked for by its key, within bounds: a client that does not
read, asks for too much, or says nothing loses its connection, never a lease for longer than
``PeerLimits.max_answer_s``. Must not know arenas, disks or policies.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from cache_tiers.block_image import BlockImage
from cache_tiers.keys import BlockKey
from cache_tiers.messages import PeerAddress
from cache_tiers.peer.listener import Listener
from cache_tiers.peer.messages import Answer, PeerClosed, PeerLimits, Request
from cache_tiers.peer.stream import Stream
from cache_tiers.tier import TierError

logger = logging.getLogger(__name__)


class Lender(Protocol):
    """What has images. All calls come from the server's event loop."""

    async def lend(self, fingerprint: bytes, keys: Sequence[BlockKey]) -> list[BlockImage | None]:
        """Images of that layout, in the order of ``keys``, that stay as they are until they are
        released; ``None`` for those that are not there, and for all of an unknown layout. One that
        is cancelled has lent nothing. Raises ``TierError``.
        """
        ...

    def release(self, images: Sequence[BlockImage]) -> None:
        """What was lent is not read any more; called once for each ``lend`` that returned."""
        ...


@dataclass(frozen=True, slots=True)
class PeerServerStats:
    """Counted since the start."""

    num_sent: int = 0
    """Images, each to its end."""
    num_missing: int = 0
    num_refused: int = 0
    """Connections beyond the limit, without the secret, or cut in the middle of something."""


class PeerServer:
    """Call order: ``start``, ``close``. Owner: the node's cache."""

    def __init__(
        self,
        lender: Lender,
        host: str,
        secret: bytes,
        limits: PeerLimits | None = None,
        *,
        port: int = 0,
    ) -> None:
        """``port``: to listen on, if it is free; any without. Raises ``ValueError`` if the secret
        is too short for a handshake.
        """
        self._lender = lender
        self._limits = limits or PeerLimits()
        self._listener = Listener(
            "peer-server",
            self._serve,
            host,
            secret,
            port=port,
            max_connections=self._limits.max_connections,
            connect_timeout_s=self._limits.connect_timeout_s,
            accept_pause_s=self._limits.accept_pause_s,
        )
        self._lent_bytes = 0
        self._stats = PeerServerStats()

    @property
    def address(self) -> PeerAddress:
        """Once started."""
        return self._listener.address

    @property
    def stats(self) -> PeerServerStats:
        return replace(self._stats, num_refused=self._listener.num_refused)

    @property
    def lent_bytes(self) -> int:
        """Of answers that are under way."""
        return self._lent_bytes

    async def start(self) -> None:
        """Listen. Raises ``OSError`` if the address is none of this machine's."""
        await self._listener.start()

    async def close(self) -> None:
        """Cut all connections; no lease is left, and no thread."""
        await self._listener.close()

    async def _serve(self, stream: Stream) -> None:
        """One connection to its end."""
        while (request := await self._next_request(stream)) is not None:
            async with asyncio.timeout(min(request.timeout_s, self._limits.max_answer_s)):
                await self._answer(stream, request)

    async def _next_request(self, stream: Stream) -> Request | None:
        """``None`` when the client has had enough or says nothing."""
        try:
            async with asyncio.timeout(self._limits.max_silence_s):
                frame = await stream.receive_frame()
        except (PeerClosed, TimeoutError):
            return None
        return msgspec.msgpack.decode(frame, type=Request)

    async def _answer(self, stream: Stream, request: Request) -> None:
        num_free = (self._limits.max_lent_bytes - self._lent_bytes) // request.image_bytes
        keys = [BlockKey(key) for key in request.keys[:num_free]]
        reserved_bytes = len(keys) * request.image_bytes
        self._lent_bytes += reserved_bytes
        try:
            async with self._lease(request, keys) as lent:
                found = [image is not None for image in lent]
                found += [False] * (len(request.keys) - len(found))
                answer = msgspec.msgpack.encode(Answer(request.image_bytes, found))
                images = [image for image in lent if image is not None]
                await stream.send_images(answer, images if request.with_images else [])
                self._count(len(images) if request.with_images else 0, found.count(False))
        finally:
            self._lent_bytes -= reserved_bytes

    @asynccontextmanager
    async def _lease(
        self, request: Request, keys: Sequence[BlockKey]
    ) -> AsyncIterator[list[BlockImage | None]]:
        """What there is of ``keys``; nothing of another size than the client expects."""
        try:
            lent = await self._lender.lend(request.fingerprint, keys)
        except TierError as error:
            logger.debug("nothing to lend: %s", error)
            yield []
            return
        try:
            yield [
                image if image and image.layout.image_bytes == request.image_bytes else None
                for image in lent
            ]
        finally:
            self._lender.release([image for image in lent if image is not None])

    def _count(self, num_sent: int, num_missing: int) -> None:
        self._stats = replace(
            self._stats,
            num_sent=self._stats.num_sent + num_sent,
            num_missing=self._stats.num_missing + num_missing,
        )
