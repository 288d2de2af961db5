"""A node's weights for other nodes: sends chunks from where they lie, as soon as they are there.

Runs on an event loop; the sending itself is in threads. Whoever connects has proven to know the
secret, and is bounded all the same: in its requests, in how many children take at a time, and in
how long it may let this side wait. Must not know where weights come from, nor who decides what
stays.
"""

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from cache_tiers.messages import PeerAddress
from cache_tiers.peer.listener import Listener
from cache_tiers.peer.messages import PeerClosed, PeerFailed
from cache_tiers.peer.stream import Stream
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.chunk_messages import (
    MAX_REQUEST_BYTES,
    Answer,
    Ask,
    Chunk,
    ChunkLimits,
    Lent,
    No,
    Offer,
    Request,
    Take,
)
from cache_tiers.weights.errors import OriginFailed, WeightsError
from cache_tiers.weights.messages import CHUNK_BYTES
from wire.frames import encode_frame

logger = logging.getLogger(__name__)

_OFFER_POLL_S = 0.02
_WAIT_SLICE_S = 0.1
"""So long closing waits for a thread that waits for a chunk."""

Lend = Callable[[Ask], Lent | None]
"""What this node has of that, or will have; ``None``: neither. Called on the event loop, for every
request, so it is quick. Files may be closed at any time between two calls."""


@dataclass(frozen=True, slots=True)
class ChunkServerStats:
    """Counted since the start, except the last two."""

    num_sent: int = 0
    """Chunks, each to its end."""
    num_sent_bytes: int = 0
    num_later: int = 0
    """Answers that a chunk hasn't arrived here yet."""
    num_busy: int = 0
    """Children that were told to go elsewhere."""
    num_refused: int = 0
    """Connections beyond the limit, without the secret, or cut in the middle of something."""
    num_children: int = 0
    num_connections: int = 0


class ChunkServer:
    """Call order: ``start``, ``close``. Owner: the node's weights; all on one event loop."""

    def __init__(
        self,
        lend: Lend,
        host: str,
        secret: bytes,
        *,
        port: int = 0,
        limits: ChunkLimits | None = None,
    ) -> None:
        """``port``: to listen on, if it is free; any without. Raises ``ValueError`` if the secret
        is too short for a handshake.
        """
        self._lend = lend
        self._limits = limits or ChunkLimits()
        self._listener = Listener(
            "chunk-server",
            self._serve,
            host,
            secret,
            port=port,
            max_connections=self._limits.max_connections,
            connect_timeout_s=self._limits.connect_timeout_s,
            accept_pause_s=self._limits.accept_pause_s,
        )
        self._children: Counter[bytes] = Counter()
        """Their connections."""
        self._is_closing = False
        self._stats = ChunkServerStats()

    @property
    def address(self) -> PeerAddress:
        """Once started."""
        return self._listener.address

    @property
    def stats(self) -> ChunkServerStats:
        return replace(
            self._stats,
            num_refused=self._listener.num_refused,
            num_children=len(self._children),
            num_connections=self._listener.num_connections,
        )

    async def start(self) -> None:
        """Listen. Raises ``OSError`` if the address is none of this machine's."""
        await self._listener.start()

    async def close(self) -> None:
        """Cut all connections; no thread is left. Idempotent."""
        self._is_closing = True
        await self._listener.close()

    async def _serve(self, stream: Stream) -> None:
        """One connection to its end."""
        ask: Ask | None = None
        child: bytes | None = None
        try:
            while (request := await self._next_request(stream)) is not None:
                if isinstance(request, Ask):
                    ask = request
                    if child is None and not self._is_busy(request.child):
                        child = request.child
                        self._children[child] += 1
                    answer = No("busy") if child is None else await self._offer(request)
                    await self._send(stream, answer)
                elif ask is None or child is None:
                    raise PeerFailed("it takes a chunk of what it wasn't offered")
                else:
                    await self._give(stream, ask, request)
        finally:
            if child is not None:
                self._children[child] -= 1
                self._children += Counter()  # those with no connection left leave

    async def _next_request(self, stream: Stream) -> Request | None:
        """``None`` when the client has had enough or says nothing."""
        try:
            async with asyncio.timeout(self._limits.max_silence_s):
                frame = await stream.receive_frame(MAX_REQUEST_BYTES)
        except (PeerClosed, TimeoutError):
            return None
        return msgspec.msgpack.decode(frame, type=Request)

    def _is_busy(self, child: bytes) -> bool:
        is_busy = child not in self._children and (len(self._children) >= self._limits.max_children)
        self._stats = replace(self._stats, num_busy=self._stats.num_busy + is_busy)
        return is_busy

    async def _offer(self, ask: Ask) -> Answer:
        until_s = time.monotonic() + min(ask.wait_s, self._limits.later_s)
        while (lent := self._lend(ask)) is not None and time.monotonic() < until_s:
            if lent.files and (lent.manifest is not None or not ask.wants_manifest):
                break
            await asyncio.sleep(_OFFER_POLL_S)
        if lent is None:
            return No("absent")
        return Offer(
            lent.stamp,
            [file.file for file in lent.files],
            sum(file.num_arrived_bytes for file in lent.files),
            lent.manifest,
        )

    async def _give(self, stream: Stream, ask: Ask, take: Take) -> None:
        lent = self._lend(ask)
        named = [file for file in lent.files if file.file.name == take.name] if lent else []
        if not named:
            await self._send(stream, No("absent"))
            return
        assert lent is not None
        file, files = named[0], lent.files
        if take.index >= file.num_chunks:
            raise PeerFailed(f"{take.name} has no chunk {take.index}")
        wait_s = min(take.wait_s, self._limits.later_s)
        async with asyncio.timeout(wait_s + self._limits.chunk_s):
            num_bytes = await stream.in_thread(
                lambda sock: self._answer(sock, file, take.index, wait_s, files)
            )
        self._stats = replace(
            self._stats,
            num_sent=self._stats.num_sent + (num_bytes > 0),
            num_sent_bytes=self._stats.num_sent_bytes + num_bytes,
            num_later=self._stats.num_later + (num_bytes == 0),
        )

    def _answer(
        self,
        sock: socket.socket,
        file: ArrivingFile,
        index: int,
        wait_s: float,
        files: Sequence[ArrivingFile],
    ) -> int:
        """In a thread; returns how many bytes went, none if the chunk isn't here."""
        try:
            if not self._has(file, index, wait_s):
                sock.sendall(_frame(No("later", [each.num_leading_chunks for each in files])))
                return 0
            _send_chunk(sock, file, index)
            return file.chunk_bytes(index)
        except WeightsError as error:
            raise PeerFailed(f"nothing to lend: {error}") from error

    def _has(self, file: ArrivingFile, index: int, wait_s: float) -> bool:
        until_s = time.monotonic() + wait_s
        while not self._is_closing:
            left_s = until_s - time.monotonic()
            if file.wait_for(index, max(0.0, min(left_s, _WAIT_SLICE_S))):
                return True
            if left_s <= 0:
                break
        return False

    async def _send(self, stream: Stream, answer: Answer) -> None:
        async with asyncio.timeout(self._limits.chunk_s):
            await stream.send_frame(msgspec.msgpack.encode(answer))


def _send_chunk(sock: socket.socket, file: ArrivingFile, index: int) -> None:
    """It must be here. Raises `OriginFailed`, and ``OSError``."""
    num_bytes = file.chunk_bytes(index)
    begin = index * CHUNK_BYTES
    end = begin + num_bytes
    with file.opened() as fd:
        sock.sendall(_frame(Chunk(num_bytes, file.digest(index))), socket.MSG_MORE)
        while begin < end:
            num_sent = os.sendfile(sock.fileno(), fd, begin, end - begin)
            if num_sent == 0:
                raise OriginFailed(f"{file.file.name} ended while it was sent")
            begin += num_sent


def _frame(answer: Answer) -> bytes:
    return encode_frame(msgspec.msgpack.encode(answer))
