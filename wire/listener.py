"""Listening for connections, on TCP and on a Unix socket at once. Must not know what is sent."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path

from wire.connection import Connection
from wire.endpoint import Endpoint
from wire.handshake import Handshake, Role
from wire.limits import Limits

logger = logging.getLogger(__name__)

ConnectionHandler = Callable[[Connection], Coroutine[None, None, None]]

MAX_UNIX_PATH_BYTES = 100
"""The kernel's limit is 104 to 108, depending on the system."""


class Listener:
    """Accepts connections and runs the handler on each. Whoever called ``listen`` closes it."""

    def __init__(self, secret: bytes, on_connection: ConnectionHandler, limits: Limits) -> None:
        self._secret = secret
        self._on_connection = on_connection
        self._limits = limits
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._unopened: set[Connection] = set()
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None
        return self._endpoint

    async def start(self, host: str, unix_path: Path | None) -> None:
        """Raises ``OSError`` if an address cannot be bound, ``ValueError`` for too long a path."""
        loop = asyncio.get_running_loop()
        if unix_path is not None:
            if len(bytes(unix_path)) > MAX_UNIX_PATH_BYTES:
                raise ValueError(
                    f"the Unix socket path {unix_path} is longer than {MAX_UNIX_PATH_BYTES} bytes: "
                    "use a shorter folder"
                )
            self._servers.append(await loop.create_unix_server(self._accept, str(unix_path)))
        try:
            server = await loop.create_server(self._accept, host, 0)
        except OSError:
            await self.close()
            raise
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        self._endpoint = Endpoint(host, port, str(unix_path) if unix_path is not None else None)

    async def close(self) -> None:
        """Stop accepting and end the handlers; each closes its connection."""
        for server in self._servers:
            server.close()
        for connection in self._unopened.copy():  # or a handler would start after the end
            connection.close("the listener closed")
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._endpoint is not None and self._endpoint.unix_path is not None:
            Path(self._endpoint.unix_path).unlink(missing_ok=True)  # noqa: ASYNC240

    def _accept(self) -> Connection:
        handshake = Handshake(Role.SERVER, self._secret)
        connection = Connection(self._limits, handshake, self._start_handler)
        self._unopened.add(connection)
        connection.opened.add_done_callback(lambda _: self._unopened.discard(connection))
        return connection

    def _start_handler(self, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(self._handle(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, connection: Connection) -> None:
        reason = "the listener's side is done"
        try:
            await self._on_connection(connection)
        except asyncio.CancelledError:
            reason = "the listener closed"
        except Exception:
            logger.exception("the handler of a connection failed")
            reason = "internal error"
        finally:
            connection.close(reason)


async def listen(
    host: str,
    unix_path: Path | None,
    *,
    secret: bytes,
    on_connection: ConnectionHandler,
    limits: Limits | None = None,
) -> Listener:
    """Listen on a free TCP port of ``host`` and, if given, on a Unix socket at ``unix_path``.

    The caller makes the socket's folder, private to its user (0700), and one path per listener.
    ``on_connection`` runs as a task per authenticated connection, which is closed when it returns.
    """
    listener = Listener(secret, on_connection, limits or Limits())
    await listener.start(host, unix_path)
    return listener
