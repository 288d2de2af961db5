"""The connections of a client to one peer: dialed when needed, kept for the next load, bounded.

Must not know what is asked for.
"""

import asyncio
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
            stream = idle or Stream.to(self._address, self._executor)
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

    async def _dial(self, stream: Stream) -> None:
        await stream.dial(self._address, self._limits.connect_timeout_s)
        if self._is_closed:
            raise PeerFailed("this side has closed")
