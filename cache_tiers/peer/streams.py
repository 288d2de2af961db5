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
            stream = self._take_idle() or await self._dial()
            self._busy.add(stream)
            try:
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

    async def _dial(self) -> Stream:
        host, port = self._address.host, self._address.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        stream = Stream(socket.socket(family, socket.SOCK_STREAM), self._executor)
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                await stream.connect(host, port)
                await stream.shake_hands(Handshake(Role.CLIENT, self._address.secret))
        except BaseException as error:
            stream.close()
            if isinstance(error, TimeoutError):
                seconds = self._limits.connect_timeout_s
                raise PeerFailed(f"it did not answer within {seconds:g} s") from error
            raise
        return stream
