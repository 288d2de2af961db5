"""Takes connections from other nodes, a bounded number of them, from those who know the secret.

On the event loop, with a thread to spare for each connection. Must not know what is asked for.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from cache_tiers.backoff import Backoff
from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import PeerFailed
from cache_tiers.peer.stream import Stream
from wire.handshake import Handshake, Role

logger = logging.getLogger(__name__)


class Listener:
    """Call order: ``start``, ``close``. Owner: a server."""

    def __init__(
        self,
        name: str,
        serve: Callable[[Stream], Awaitable[None]],
        host: str,
        secret: bytes,
        *,
        port: int,
        max_connections: int,
        connect_timeout_s: float,
        accept_pause_s: float,
    ) -> None:
        """``serve`` has a stream after its handshake, to the end: when it returns, or raises
        ``PeerFailed``, ``TimeoutError`` or what decoding raises, the stream is closed. Raises
        ``ValueError`` if the secret is too short for a handshake.
        """
        Handshake(Role.SERVER, secret)
        self.num_refused = 0
        """Connections beyond the limit, without the secret, or cut in the middle of something."""
        self._serve = serve
        self._host = host
        self._port = port
        self._secret = secret
        self._max_connections = max_connections
        self._connect_timeout_s = connect_timeout_s
        self._accept_pause_s = accept_pause_s
        self._executor = ThreadPoolExecutor(max_connections, name)
        self._socket: socket.socket | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._accepting = Backoff(f"accepting peers on {host}", accept_pause_s, accept_pause_s)
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> PeerAddress:
        """Once started."""
        assert self._socket is not None
        return PeerAddress(self._host, self._socket.getsockname()[1], self._secret)

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Listen on the port if it is free, else on any. Raises ``OSError`` if the address is none
        of this machine's."""
        try:
            self._socket = self._listen(self._port)
        except OSError:
            if self._port == 0:
                raise
            self._socket = self._listen(0)
        self._socket.setblocking(False)
        self._resume(self._socket)

    async def close(self) -> None:
        """Cut all connections; no thread is left. Idempotent."""
        if self._resuming is not None:
            self._resuming.cancel()
        if self._socket is not None and self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await asyncio.to_thread(self._executor.shutdown)

    def _listen(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        return socket.create_server((self._host, port), family=family, backlog=128)

    def _resume(self, listener: socket.socket) -> None:
        self._resuming = None
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Not a task that waits for ``sock_accept``: to cancel one may lose a connection."""
        try:
            sock, _ = listener.accept()
            stream = Stream(sock, self._executor)
        except BlockingIOError:
            return
        except OSError as error:  # too many open files, or a client that is gone already
            self._accepting.failed(error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            self._resuming = loop.call_later(self._accept_pause_s, self._resume, listener)
            return
        self._accepting.succeeded()
        if len(self._connections) >= self._max_connections:
            self.num_refused += 1
            stream.close()
            return
        task = asyncio.create_task(self._keep(stream))
        self._connections.add(task)
        task.add_done_callback(lambda task: self._end(task, stream))

    def _end(self, task: asyncio.Task[None], stream: Stream) -> None:
        """Also of a task that was cancelled before it began."""
        self._connections.discard(task)
        stream.close()

    async def _keep(self, stream: Stream) -> None:
        """One connection to its end."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await stream.shake_hands(Handshake(Role.SERVER, self._secret))
            await self._serve(stream)
        except (PeerFailed, TimeoutError, msgspec.MsgspecError) as error:
            self.num_refused += 1
            logger.debug("a peer's connection ended: %s", str(error) or "timed out")
        except Exception:
            logger.exception("answering a peer failed")
