"""Rank 0's end of the connection to its node's cache: never blocks, and comes back by itself.

Messages come out in order; that the node came or went stands among them. Must not know what they
mean, nor the accelerator.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

import msgspec

from cache_tiers.messages import EngineToNode, NodeToEngine
from cache_tiers.tier import TierError
from wire.errors import ConnectionClosed, WireError
from wire.pipe import SyncPipe

logger = logging.getLogger(__name__)

RETRY_S = 3.0
"""Between two attempts to connect."""
MOST_RETRY_S = 60.0
"""After connections that did not last so long: each time twice as long, as taking an arena into use
may hold up all that run."""


class MappedArena(Protocol):
    """The node's arena, mapped here."""

    @property
    def memory(self) -> memoryview: ...

    def close(self) -> None:
        """Idempotent. While somebody has a view of ``memory`` the mapping stays."""


class NodeConnection(Protocol):
    """Opens a connection: the node has said ``Welcome``. Raises ``TierError``."""

    def __call__(self) -> tuple[SyncPipe, MappedArena]: ...


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The node is there: nothing that was said before counts."""

    arena: MappedArena
    """To be closed after ``LinkDown``: until then a dead node's memory is not free."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The node is gone, with all slots and leases."""

    reason: str


LinkNews = NodeToEngine | LinkUp | LinkDown


class NodeLink(Protocol):
    """What ``TierDesk`` needs of a connection."""

    @property
    def pipe(self) -> SyncPipe | None:
        """To wait for; None while there is no connection."""
        ...

    def poll(self) -> list[LinkNews]:
        """What came since the last call; never waits."""
        ...

    def send(self, message: EngineToNode) -> None:
        """Lost without a connection, or when that breaks: ``poll`` then tells."""
        ...

    def drop(self, reason: str) -> None:
        """End the connection: ``poll`` tells, and a new one is made later."""
        ...

    def close(self) -> None: ...


class TierLink:
    """A ``NodeLink`` over a Unix socket; connects in a thread that lives as long as the attempt."""

    def __init__(
        self, connect: NodeConnection, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._pipe: SyncPipe | None = None
        self._failure: str | None = None
        """Why the connection ended, until ``poll`` has told it."""
        self._attempts: SimpleQueue[tuple[SyncPipe, MappedArena] | Exception] = SimpleQueue()
        self._is_connecting = False
        self._retry_at_s = 0.0
        self._retry_s = RETRY_S
        """After the connection's end."""
        self._connected_s = 0.0
        self._was_reported = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(NodeToEngine).decode

    @property
    def pipe(self) -> SyncPipe | None:
        return self._pipe

    def connect_now(self) -> None:
        """Wait for the first attempt; where it fails, later ones follow as usual."""
        self._is_connecting = True
        self._attempt()

    def poll(self) -> list[LinkNews]:
        news: list[LinkNews] = []
        if self._pipe is None and self._failure is None:
            self._take_attempt(news)
        if self._pipe is not None:
            try:
                news += [self._decode(frame) for frame in self._pipe.poll(0.0)]
            except ConnectionClosed as closed:
                self.drop(closed.reason)
            except (msgspec.MsgspecError, WireError) as error:
                self.drop(f"it broke the protocol: {error}")
        if self._failure is not None:
            news.append(LinkDown(self._failure))
            self._failure = None
        return news

    def send(self, message: EngineToNode) -> None:
        if self._pipe is None:
            return
        try:
            self._pipe.send(self._encode(message))
        except ConnectionClosed as closed:
            self.drop(closed.reason)
        except WireError as error:
            self.drop(str(error))

    def drop(self, reason: str) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
            self._failure = reason
            self._postpone()
            logger.warning("the node's cache is gone, prompts are computed instead: %s", reason)

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _postpone(self) -> None:
        now_s = self._clock()
        if now_s - self._connected_s >= MOST_RETRY_S:
            self._retry_s = RETRY_S
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(MOST_RETRY_S, 2 * self._retry_s)

    def _take_attempt(self, news: list[LinkNews]) -> None:
        try:
            outcome = self._attempts.get_nowait()
        except Empty:
            if not self._is_connecting and self._clock() >= self._retry_at_s:
                self._is_connecting = True
                Thread(target=self._attempt, name="connect to node cache", daemon=True).start()
            return
        self._is_connecting = False
        if isinstance(outcome, Exception):
            self._retry_at_s = self._clock() + RETRY_S
            if not self._was_reported:  # once, not every few seconds
                self._was_reported = True
                logger.warning("the node's cache can't be used, trying again: %s", outcome)
            return
        self._was_reported = False
        self._connected_s = self._clock()
        self._pipe, arena = outcome
        logger.info("connected to the node's cache, an arena of %d bytes", arena.memory.nbytes)
        news.append(LinkUp(arena))

    def _attempt(self) -> None:
        try:
            self._attempts.put(self._connect())
        except TierError as error:
            self._attempts.put(error)
        except Exception as error:  # or nobody would ever try again
            logger.exception("connecting to the node's cache failed")
            self._attempts.put(error)
