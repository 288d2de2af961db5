"""Another node as a child sees it: what it offers, and its chunks by several connections.

Chunks are received straight into their file and checked in the thread that received them, while
they are in the processor's cache. Must not know who else offers what.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import xxhash

from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import PeerFailed
from cache_tiers.peer.stream import Stream
from cache_tiers.weights.chunk_messages import (
    MAX_ANSWER_BYTES,
    Answer,
    Ask,
    Chunk,
    ChunkLimits,
    No,
    Offer,
    Take,
)
from cache_tiers.weights.messages import can_be_file_name
from cache_tiers.weights.missing_chunks import ChunkRef, MissingChunks
from wire.frames import HEADER_BYTES, encode_frame

_AHEAD = 2
"""Chunks that one connection has asked for at a time, so that it never idles."""
_MAX_CORRUPT = 2
_MAX_FAILURES = 2
"""Without a chunk in between: then it isn't asked any more."""
_LATER_PAUSE_S = 0.01
"""A parent that says ``later`` without having waited isn't asked in a hot loop."""
_MAX_CHUNK_FRAME_BYTES = 64 * 1024
_LATER_S = 0.1
"""A chunk that hasn't arrived at the parent is waited for no longer, before others are taken that
have."""
_MAX_STAMP_LEN = 256


class ParentStalled(PeerFailed):
    """It says nothing, or so slowly that it is of no use."""


class ParentNotNow(PeerFailed):
    """That is no failure."""


class ParentWaits(ParentNotNow):
    """It will have it, but knows nothing yet."""


class ParentAbsent(ParentNotNow):
    """It has none of it."""


class ParentBusy(ParentNotNow):
    """It has children enough."""


class ParentLied(PeerFailed):
    """What it says can't be right, or isn't what others say: asking again doesn't help."""


@dataclass(slots=True, eq=False)
class Parent:
    """What is remembered of one. Owner: one promotion."""

    address: PeerAddress
    why: str = "not asked"
    """It is of no use, in words."""
    num_failures: int = 0
    is_dropped: bool = False
    num_leading_chunks: dict[str, int] = field(default_factory=dict)
    """By file, as it said last when it was asked for a chunk too early."""

    def __str__(self) -> str:
        return f"{self.address.host}:{self.address.port}"

    def failed(self, error: PeerFailed) -> None:
        words = str(error)
        self.why = "".join(char if char.isprintable() else " " for char in words)[:300]
        if not isinstance(error, ParentNotNow):
            self.num_failures += 1
            if self.num_failures >= _MAX_FAILURES or isinstance(error, ParentLied):
                self.is_dropped = True


class _Digests(NamedTuple):
    said: bytes
    actual: bytes


class ParentStream:
    """One connection to it. After ``PeerFailed`` it is of no more use."""

    def __init__(self, parent: Parent, stream: Stream, ask: Ask, limits: ChunkLimits) -> None:
        self._parent = parent
        self._stream = stream
        self._ask = ask
        self._limits = limits
        self._file_names: list[str] = []
        """As they were offered."""

    @classmethod
    @asynccontextmanager
    async def to(
        cls, parent: Parent, ask: Ask, limits: ChunkLimits, executor: Executor
    ) -> AsyncIterator["ParentStream"]:
        """Raises ``PeerFailed``."""
        stream = Stream.to(parent.address, executor)
        try:
            try:
                await stream.dial(parent.address, limits.connect_timeout_s)
            except ValueError as error:
                raise ParentLied(str(error)) from error
            yield cls(parent, stream, ask, limits)
        finally:
            stream.close()

    async def ask(self, wait_s: float = 0.0, *, wants_manifest: bool = False) -> Offer:
        """Raises ``ParentNotNow``, ``ParentLied``, ``PeerFailed``."""
        request = msgspec.structs.replace(self._ask, wait_s=wait_s, wants_manifest=wants_manifest)
        try:
            async with asyncio.timeout(wait_s + self._limits.silence_s):
                await self._stream.send_frame(msgspec.msgpack.encode(request))
                frame = await self._stream.receive_frame(MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise ParentStalled(f"no answer within {self._limits.silence_s:g} s") from error
        answer = _decoded(frame)
        if isinstance(answer, No):
            if answer.why == "busy":
                raise ParentBusy("it has children enough")
            raise ParentAbsent("it has none of it")
        if not isinstance(answer, Offer):
            raise ParentLied("it answers with a chunk what wasn't asked for one")
        check_offer(answer, self._limits)
        if not answer.files:
            raise ParentWaits("it doesn't know the files itself yet")
        self._file_names = [file.name for file in answer.files]
        return answer

    async def take(self, missing: MissingChunks, *, max_chunks: int | None = None) -> int:
        """Bring chunks while there are any to claim, of what was offered; returns how many bytes
        came. Raises ``PeerFailed``."""
        return await self._stream.in_thread(lambda sock: self._take(sock, missing, max_chunks))

    def _take(self, sock: socket.socket, missing: MissingChunks, max_chunks: int | None) -> int:
        """In a thread; however it ends, nothing stays claimed."""
        limits = self._limits
        # A call that got something before the silence waits as long as the next one: half for each.
        wait_s = limits.silence_s / 2
        timeval = struct.pack("ll", int(wait_s), int(wait_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        asked: deque[ChunkRef] = deque()
        num_left = max_chunks
        num_bytes = 0
        try:
            while True:
                while len(asked) < _AHEAD and num_left != 0:
                    ref = missing.claim(self._parent, self._parent.num_leading_chunks)
                    if ref is None:
                        break
                    asked.append(ref)
                    num_left = None if num_left is None else num_left - 1
                    sock.sendall(_take_frame(ref, min(_LATER_S, limits.later_s, wait_s / 2)))
                if not asked:
                    return num_bytes
                digest = self._receive(sock, asked[0])
                ref = asked.popleft()
                if digest is None:
                    missing.give_back([ref])
                    time.sleep(_LATER_PAUSE_S)
                elif self._is_sound(ref, digest, missing):
                    num_bytes += ref.num_bytes
        finally:
            missing.give_back(asked)

    def _receive(self, sock: socket.socket, ref: ChunkRef) -> _Digests | None:
        """The answer to the oldest request, ``None`` for ``later``."""
        until_s = time.monotonic() + self._limits.silence_s + self._limits.chunk_s
        header = bytearray(HEADER_BYTES)
        self._fill(sock, memoryview(header), until_s)
        num_bytes = int.from_bytes(header, "little")
        if num_bytes > _MAX_CHUNK_FRAME_BYTES:
            raise ParentLied(f"it announced a frame of {num_bytes} bytes before a chunk")
        frame = bytearray(num_bytes)
        self._fill(sock, memoryview(frame), until_s)
        answer = _decoded(frame)
        if isinstance(answer, No):
            if answer.why != "later":
                raise ParentAbsent("it doesn't have it any more")
            self._parent.num_leading_chunks = dict(
                zip(self._file_names, answer.num_leading_chunks, strict=False)
            )
            return None
        if not isinstance(answer, Chunk) or answer.num_bytes != ref.num_bytes:
            raise ParentLied(f"it answers something else than a chunk of {ref.num_bytes} bytes")
        with ref.file.chunk(ref.chunk_index) as content:
            self._fill(sock, content, until_s)
            return _Digests(said=answer.digest, actual=xxhash.xxh3_128_digest(content))

    def _is_sound(self, ref: ChunkRef, digest: _Digests, missing: MissingChunks) -> bool:
        if digest.said == digest.actual:
            missing.arrived(ref, digest.actual)
            self._parent.num_failures = 0
            return True
        if missing.spoiled(ref, self._parent) >= _MAX_CORRUPT:
            raise ParentLied(f"{_MAX_CORRUPT} of its chunks came damaged")
        return False

    def _fill(self, sock: socket.socket, content: memoryview, until_s: float) -> None:
        num_received = 0
        while num_received < len(content):
            try:
                # An error remembers this frame, so no view of the file may stay in it.
                with content[num_received:] as rest:
                    num_new = sock.recv_into(rest, 0, socket.MSG_WAITALL)
            except BlockingIOError as error:
                seconds = self._limits.silence_s
                raise ParentStalled(f"not a byte came for {seconds:g} s") from error
            if num_new == 0:
                raise PeerFailed("it closed the connection in the middle")
            num_received += num_new
            if num_received < len(content) and time.monotonic() > until_s:
                raise ParentStalled(f"a chunk took longer than {self._limits.chunk_s:g} s")


def check_offer(offer: Offer, limits: ChunkLimits) -> None:
    """Raises ``ParentLied`` for what can't be a model's files."""
    names = [file.name for file in offer.files]
    for name in names:
        if not can_be_file_name(name):
            raise ParentLied(f"it offers a file by the name {name[:40]!r}")
    if len(set(names)) < len(names):
        raise ParentLied("it offers two files by one name")
    if any(file.num_bytes < 0 for file in offer.files):
        raise ParentLied("it offers a file of less than no bytes")
    if (num_bytes := sum(file.num_bytes for file in offer.files)) > limits.max_model_bytes:
        raise ParentLied(f"it offers {num_bytes} bytes, the limit is {limits.max_model_bytes}")
    if len(offer.stamp) > _MAX_STAMP_LEN:
        raise ParentLied("it offers a revision whose stamp is too long")


def _decoded(frame: bytes | bytearray) -> Answer:
    try:
        return msgspec.msgpack.decode(frame, type=Answer)
    except msgspec.MsgspecError as error:
        raise ParentLied(f"its answer is none: {error}") from error


def _take_frame(ref: ChunkRef, wait_s: float) -> bytes:
    return encode_frame(msgspec.msgpack.encode(Take(ref.file.file.name, ref.chunk_index, wait_s)))
