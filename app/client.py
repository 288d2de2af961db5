"""What the gateway needs of an engine replica, whatever carries it.

The channel client (TCP or Unix socket), the in-process client and the test fakes implement
``EngineClient``, so that the engine behind can be another one. Everything is called from one event
loop and never blocks it.
"""

from collections.abc import Callable
from typing import Protocol

from engine.messages import (
    CacheEvents,
    CacheSnapshot,
    EngineRequest,
    LoadView,
    ModelCard,
    QueryKind,
    TokenDelta,
)
from engine.rung_messages import RungOrder, RungState

QUERY_TIMEOUT_S = 5.0

DeltaSink = Callable[[TokenDelta], None]
"""Gets the deltas of one request: those of a sample in order, up to one with a finish reason. Must
not raise.
"""


class AskedTooOftenError(Exception):
    """The engine answers more queries in a moment."""


class EngineListener(Protocol):
    """Told by a client what changed; the fleet implements it."""

    def on_credits(self, client: "EngineClient") -> None:
        """``client.num_credits`` grew."""
        ...

    def on_step(self, client: "EngineClient", events: CacheEvents | None) -> None:
        """``client.load`` is new; ``events`` are the prefix cache's changes."""
        ...

    def on_snapshot(self, client: "EngineClient", snapshot: CacheSnapshot) -> None:
        """All that the prefix cache holds, or a part of it; first of all after connecting."""
        ...

    def on_draining(self, client: "EngineClient") -> None:
        """The replica takes no more requests; running ones go on."""
        ...

    def on_rung(self, client: "EngineClient") -> None:
        """``client.rung_state`` is new."""
        ...

    def on_closed(self, client: "EngineClient", reason: str) -> None:
        """The connection is gone.

        Every open sink has been given a delta with ``FinishReason.ERROR`` before, one for each of
        its samples that had not ended.
        """
        ...


class EngineClient(Protocol):
    """One engine replica as one gateway sees it."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def load(self) -> LoadView:
        """The newest view; zeros before the first step."""
        ...

    @property
    def num_credits(self) -> int:
        """Requests that may be submitted now."""
        ...

    @property
    def is_accepting(self) -> bool:
        """False while it drains, sleeps or moves between rungs, and after the connection closed."""
        ...

    @property
    def is_draining(self) -> bool:
        """The replica leaves for good."""
        ...

    @property
    def rung_state(self) -> RungState:
        """The newest; SERVING until the engine says something else."""
        ...

    @property
    def num_gateways(self) -> int:
        """That are connected to the engine, this one included."""
        ...

    def set_demand(self, num_waiting: tuple[int, int, int]) -> None:
        """Say how many requests of each class wait for this engine; with none, unused credits go
        back.
        """
        ...

    def submit(self, request: EngineRequest, sink: DeltaSink) -> None:
        """Start ``request``. Precondition: ``num_credits > 0``; uses one."""
        ...

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        """End a request, or one sample of it (see ``engine.messages.Abort``).

        Its sink still gets the last deltas, with the usage.
        """
        ...

    def request_snapshot(self) -> None:
        """Events were missed; ``on_snapshot`` follows."""
        ...

    def set_rung(self, order: RungOrder) -> None:
        """Pass the autoscaler's order on; ``on_rung`` follows if it changes anything."""
        ...

    def set_successor(self, *, exists: bool) -> None:
        """Say whether others could go on with what runs there."""
        ...

    async def query(
        self, kind: QueryKind, argument: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> bytes | None:
        """The payload of the engine's ``engine.messages.Reply``; None: unknown there.

        Raises ``AskedTooOftenError``, ``ConnectionClosed``, and ``TimeoutError``.
        """
        ...

    async def close(self) -> None:
        """Abort what is open and close the connection."""
        ...
