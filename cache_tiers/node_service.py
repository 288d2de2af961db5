"""A node's cache for the engines on the node: a Unix socket, a session for each of them.

Whatever one engine says or fails to do ends its own connection at most. Must not know where images
lie (``ImageStore``) or who else asks for them.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from cache_tiers.arena import Arena
from cache_tiers.block_image import ImageLayout
from cache_tiers.engine_claims import (
    ProtocolViolation,
    refusal,
)
from cache_tiers.engine_session import EngineSession
from cache_tiers.image_store import ImageStore
from cache_tiers.messages import Gone, MediaEvents, NodeToEngine, Open
from cache_tiers.node_admission import NotAdmitted, admit
from cache_tiers.node_socket import listen
from cache_tiers.peer_pool import MakePeer, PeerPool
from cache_tiers.tier import TierKind
from wire.connection import Connection, adopt
from wire.errors import ConnectionClosed
from wire.limits import Limits

logger = logging.getLogger(__name__)

_MIB = 1024**2
LIMITS = Limits(
    max_frame_bytes=2 * _MIB,  # keys of a prompt of 1.8 million tokens; done in a moment
    # The kernel tells of a process that died; one that is busy for long has done nothing wrong.
    heartbeat_period_s=None,
    flush_timeout_s=0.5,
)
_ADMISSION_TIMEOUT_S = 2.0
"""`close` waits no longer."""
_PUMP_PERIOD_S = 0.05
_SLOTS_DIVISOR = 8
"""All engines' free slots together take no more than this part of the arena."""
KEY_STRIDE = 8
"""What routers keep (``engine.messages.KEY_STRIDE``)."""
_KEYS_PER_MESSAGE = 32 * 1024
_MAX_RANKS = 256
_MAX_LAYOUTS = 1024
"""Each is remembered for good."""


@dataclass(frozen=True, slots=True)
class NodeServiceStats:
    """Of the connections of engines; numbers of what happened count since the start."""

    num_engines: int = 0
    num_granted_slots: int = 0
    """That engines hold and have not used."""
    num_fetches: int = 0
    """Under way or leased."""
    num_refused: int = 0
    num_violations: int = 0
    """Connections that ended for what was said on them."""


class NodeService:
    """Call order: ``start``, ``close``. Owner: the node's cache, as of ``store`` and ``arena``."""

    def __init__(
        self,
        store: ImageStore,
        arena: Arena,
        socket_path: Path,
        make_peer: MakePeer,
        *,
        key_stride: int = KEY_STRIDE,
        limits: Limits = LIMITS,
    ) -> None:
        """``key_stride``: of the store's ``MediaEvents``."""
        self._store = store
        self._arena = arena
        self._socket_path = socket_path
        self._key_stride = key_stride
        self._limits = limits
        self._peers = PeerPool(make_peer)
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ranks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._is_closing = asyncio.Event()
        self._sessions: list[EngineSession] = []
        self._layouts: dict[bytes, ImageLayout] = {}
        """By fingerprint, of all engines that ever came."""
        self._stats = NodeServiceStats()
        self._used_at_s = time.monotonic()
        self._encode = msgspec.msgpack.Encoder().encode

    async def start(self) -> None:
        """Listen. Raises ``OSError`` or ``TierError`` if that is impossible."""
        self._socket = listen(self._socket_path)
        self._tasks = {asyncio.create_task(self._accept()), asyncio.create_task(self._pump())}

    async def close(self) -> None:
        """Cut all engines; nothing of the store is held afterwards."""
        self._is_closing.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._socket is not None:
            self._socket.close()
            self._socket_path.unlink(missing_ok=True)
        for connection in self._connections:
            connection.close("the node cache closes")
        if self._ranks:
            await asyncio.wait(self._ranks)
        await self._peers.close()

    def sessions(self, layout: ImageLayout) -> list[EngineSession]:
        """Of the engines whose images are of this layout."""
        return [session for session in self._sessions if session.layout == layout]

    def layout(self, fingerprint: bytes) -> ImageLayout | None:
        """None: no engine with such images ever came."""
        return self._layouts.get(fingerprint)

    @property
    def idle_s(self) -> float:
        """How long no rank has been connected."""
        return 0.0 if self._ranks else time.monotonic() - self._used_at_s

    def stats(self) -> NodeServiceStats:
        return replace(
            self._stats,
            num_engines=len(self._sessions),
            num_granted_slots=sum(len(session.stock) for session in self._sessions),
            num_fetches=sum(len(session.fetches) for session in self._sessions),
        )

    async def _accept(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # too many open files
                logger.warning("cannot accept engines: %s; next try in 1 s", error)
                await asyncio.sleep(1.0)
                continue
            sock.setblocking(False)
            if len(self._ranks) >= _MAX_RANKS:
                logger.warning("more than %d ranks on this node: one is turned away", _MAX_RANKS)
                sock.close()
                continue
            task = asyncio.create_task(self._serve(sock))
            self._ranks.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, rank: asyncio.Task[None]) -> None:
        self._ranks.discard(rank)
        self._used_at_s = time.monotonic()

    async def _serve(self, sock: socket.socket) -> None:
        """One rank, from its first word to the end of its connection."""
        try:
            async with asyncio.timeout(_ADMISSION_TIMEOUT_S):
                opening = await admit(sock, self._arena, self._refusal)
            connection = await adopt(sock, self._limits)
        except (NotAdmitted, OSError, TimeoutError) as error:
            logger.warning("an engine was turned away: %s", str(error) or "it said nothing")
            self._stats = replace(self._stats, num_refused=self._stats.num_refused + 1)
            sock.close()
            return
        self._connections.add(connection)
        if self._is_closing.is_set():
            connection.close("the node cache closes")
        try:
            await (self._follow(connection) if opening.rank else self._lead(opening, connection))
        except ProtocolViolation as violation:
            logger.warning("an engine of %s was cut: it said %s", opening.model, violation)
            self._stats = replace(self._stats, num_violations=self._stats.num_violations + 1)
        except Exception:
            logger.exception("the connection of an engine of %s failed", opening.model)
        finally:
            self._connections.discard(connection)
            connection.close("the session ended")
            await connection.wait_closed()

    async def _lead(self, opening: Open, connection: Connection) -> None:
        """A rank 0: the one that talks."""
        session = EngineSession(opening, connection, self._store, self._peers)
        self._pump_layout(opening.layout)  # what others are told now, this one learns from `held`
        self._layouts[opening.layout.fingerprint] = opening.layout
        self._sessions.append(session)
        self._share_slots()
        try:
            self._tell_held(session)
            session.refill()
            await session.run()
        finally:
            self._sessions.remove(session)
            self._share_slots()
            connection.close("the session ended")  # no slot is granted while it ends
            await session.end(self._is_closing)

    async def _follow(self, connection: Connection) -> None:
        """Another rank: it has the arena, and nothing to say."""
        try:
            await connection.receive()
        except ConnectionClosed:
            return
        raise ProtocolViolation("a rank other than 0 spoke")

    def _refusal(self, opening: Open) -> str | None:
        known = self._layouts.get(opening.layout.fingerprint, opening.layout)
        if known != opening.layout:
            return f"its layout {opening.layout} has the fingerprint of {known}"
        if known is opening.layout and len(self._layouts) >= _MAX_LAYOUTS:
            return f"{_MAX_LAYOUTS} layouts of KV have been here before: restart the node cache"
        return refusal(opening, self._arena, self._key_stride)

    def _share_slots(self) -> None:
        for session in self._sessions:
            capacity = self._arena.capacity(session.layout.image_bytes)
            session.max_slots = max(1, capacity // (_SLOTS_DIVISOR * len(self._sessions)))

    def _tell_held(self, session: EngineSession) -> None:
        for kind in (TierKind.HOST, TierKind.DISK):
            keys = self._store.held(session.layout, kind)
            for begin in range(0, len(keys), _KEYS_PER_MESSAGE):
                part = list(keys[begin : begin + _KEYS_PER_MESSAGE])
                session.send(MediaEvents(kind, stored=part, evicted=[]))

    async def _pump(self) -> None:
        """Tell engines what changed, and give them slots that there was no room for before."""
        while True:
            await asyncio.sleep(_PUMP_PERIOD_S)
            try:
                for layout in self._layouts.values():
                    self._pump_layout(layout)
                for session in self._sessions:
                    session.refill()
            except Exception:
                logger.exception("telling engines of changes failed")

    def _pump_layout(self, layout: ImageLayout) -> None:
        """Taken also when nobody listens: it would pile up."""
        messages: list[NodeToEngine] = list(self._store.take_events(layout))
        gone = self._store.take_gone(layout)
        if gone:
            messages.append(Gone(list(gone)))
        self._tell(self.sessions(layout), messages)

    def _tell(self, sessions: Sequence[EngineSession], messages: Sequence[NodeToEngine]) -> None:
        for message in messages:
            encoded = self._encode(message)
            for session in sessions:
                session.send_encoded(encoded)
