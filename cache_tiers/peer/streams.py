"""The connections of a client to one peer: dialed when needed, kept for the next load, bounded.

Must not know what is asked for.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import PeerFailed, PeerLimits
from cache_tiers.peer.stream import Stream
from wire.handshake import Handshake, Role


class Streams:
    """Owner: one ``PeerTier``."""

    def __init__(self, address: PeerAddress, limits: PeerLimits) -> None:
        """Raises ``ValueError`` if the secret is too short for a handshake."""
        Handshake(Role.CLIENT, address.secret)
        self._address = address
        self._limits = limits
        self._executor = ThreadPoolExecutor(limits.max_streams, "peer-tier")
        self._free = asyncio.Semaphore(limits.max_streams)
        self._idle: list[tuple[float, Stream]] = []
        """Since when, the last used one last."""
        self._busy: set[Stream] = set()
        self._is_closed = False

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Stream]:
        """A stream for one request; it is kept unless the body raises. Raises ``PeerFailed``."""
        async with self._free:
            idle = self._take_idle()
            stream = idle or self._make()
            self._busy.add(stream)
            try:
                if idle is None:
                    await self._dial(stream)
                yield stream
            except BaseException:
                stream.close()
                raise
            else:
                self._idle.append((asyncio.get_running_loop().time(), stream))
            finally:
                self._busy.discard(stream)

    async def close(self) -> None:
        """What is under way fails; returns when no thread is left."""
        self._is_closed = True
        for stream in self._busy:
            stream.interrupt()
        for _, stream in self._idle:
            stream.close()
        self._idle.clear()
        await asyncio.to_thread(self._executor.shutdown)

    def _take_idle(self) -> Stream | None:
        if self._is_closed:
            raise PeerFailed("this side has closed")
        oldest_s = asyncio.get_running_loop().time() - self._limits.max_idle_s
        while self._idle:
            since_s, stream = self._idle.pop()
            if since_s >= oldest_s and stream.is_usable():
                return stream
            stream.close()
        return None

    def _make(self) -> Stream:
        family = socket.AF_INET6 if ":" in self._address.host else socket.AF_INET
        try:
            return Stream(socket.socket(family, socket.SOCK_STREAM), self._executor)
        except OSError as error:  # too many open files
            raise PeerFailed(f"cannot connect: {error}") from error

    async def _dial(self, stream: Stream) -> None:
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                await stream.connect(self._address.host, self._address.port)
                await stream.shake_hands(Handshake(Role.CLIENT, self._address.secret))
        except TimeoutError as error:
            seconds = self._limits.connect_timeout_s
            raise PeerFailed(f"it did not answer within {seconds:g} s") from error
        if self._is_closed:
            raise PeerFailed("this side has closed")
