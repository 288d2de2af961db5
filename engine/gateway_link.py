"""One connected gateway, as the engine's front sees it: what it was told, and what it may ask for.

Owns the pace of snapshots: their parts go one by one, each when the gateway has read most of what
was sent before, so that they never add to the backlog for which a gateway is cut. Must not know
credits or requests. Lives on one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf

import msgspec

from engine.messages import CacheSnapshot
from engine.rate_limit import RateLimit
from wire.connection import Connection

SNAPSHOT_PERIOD_S = 1.0
"""A gateway gets a snapshot at most this often, however often it asks."""
LOW_BACKLOG_BYTES = 64 * 1024
"""The next part leaves when no more than this waits to be sent."""
_PACE_S = 0.01


class GatewayLink:
    """``close`` ends it; the connection is closed by whoever serves it."""

    def __init__(
        self, source: int, connection: Connection, snapshot: Callable[[], list[CacheSnapshot]]
    ) -> None:
        """``snapshot``: all parts of one, as things are now."""
        self.source = source
        self.connection = connection
        self.is_load_stale = False
        self.has_successor = True
        """As it said last: others could go on with its requests."""
        self.queries = RateLimit(burst=16, per_s=8)
        self._snapshot = snapshot
        self._encode = msgspec.msgpack.Encoder().encode
        self._parts: deque[CacheSnapshot] = deque()
        """Still to be sent; what happens to the cache meanwhile is told by events."""
        self._begun_s: float | None = None
        self._is_asked = False
        self._timer: asyncio.TimerHandle | None = None

    def ask_snapshot(self) -> None:
        """At once, or when the period since the last one is over; once, however often asked."""
        self._is_asked = True
        if self._timer is None:
            self._go_on()

    def close(self) -> None:
        """Nothing more is sent from here."""
        if self._timer is not None:
            self._timer.cancel()
        self._parts.clear()

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._is_asked and loop.time() >= self._due_s:
            self._is_asked = False
            self._begun_s = loop.time()
            self._parts = deque(self._snapshot())
        # The first part follows the card at once: it says which events come next.
        if self._parts and (
            self._parts[0].is_first or self.connection.queued_bytes <= LOW_BACKLOG_BYTES
        ):
            self.connection.send(self._encode(self._parts.popleft()))
        if self._parts:
            self._timer = loop.call_later(_PACE_S, self._go_on)
        elif self._is_asked:
            self._timer = loop.call_at(self._due_s, self._go_on)

    @property
    def _due_s(self) -> float:
        """When the next snapshot may begin."""
        return -inf if self._begun_s is None else self._begun_s + SNAPSHOT_PERIOD_S
