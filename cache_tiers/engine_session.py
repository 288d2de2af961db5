"""One engine's connection to its node's cache, after ``Welcome``: what it says, and what it holds.

Everything that the engine holds (free slots, leases, running fetches) ends with the session,
however that ends. Must not know sockets' addresses or other engines.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from cache_tiers.engine_claims import (
    ProtocolViolation,
    check_ended,
    check_fetch,
    check_pin,
    check_stored,
)
from cache_tiers.fetches import Fetches
from cache_tiers.image_store import ImageStore
from cache_tiers.keys import BlockKey
from cache_tiers.messages import (
    Cancel,
    Ended,
    EngineToNode,
    Export,
    Exported,
    Fetch,
    Loaded,
    NodeToEngine,
    Open,
    Pin,
    Slots,
    Store,
)
from cache_tiers.peer_pool import PeerPool
from cache_tiers.slot_stock import SlotStock
from wire.connection import Connection
from wire.errors import ConnectionClosed

logger = logging.getLogger(__name__)

_SETTLE_S = 2.0
"""Ranks other than the one that is gone may still be in a step that writes to slots."""


class EngineSession:
    """Call order: ``run`` to the end of the connection, ``refill`` meanwhile, then ``end``."""

    def __init__(
        self, opening: Open, connection: Connection, store: ImageStore, peers: PeerPool
    ) -> None:
        self.layout = opening.layout
        self.model = opening.model
        self.stock = SlotStock(store, opening.layout)
        self.max_slots = 0
        """Of the stock; the service says how many."""
        self.fetches = Fetches(store, opening.layout, peers, self.send)
        self._connection = connection
        self._store = store
        self._exports: dict[int, asyncio.Future[None]] = {}
        self._last_export_id = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(EngineToNode).decode

    async def run(self) -> None:
        """Return when the engine is gone. Raises ``ProtocolViolation`` for what it can't mean."""
        while True:
            try:
                frame = await self._connection.receive()
            except ConnectionClosed as closed:
                logger.info("an engine of %s left: %s", self.model, closed.reason)
                return
            try:
                message = self._decode(frame)
            except msgspec.MsgspecError as error:
                raise ProtocolViolation(f"a frame that is no message: {error}") from error
            self._take(message)

    def send(self, message: NodeToEngine) -> None:
        self.send_encoded(self._encode(message))

    def send_encoded(self, message: bytes) -> None:
        """What several engines are told is encoded once. Never waits."""
        self._connection.send(message)

    def refill(self) -> None:
        """Grant what is due."""
        offsets = self.stock.refill(self.max_slots)
        if offsets:
            self.send(Slots(offsets))

    async def export(self, keys: Sequence[BlockKey]) -> None:
        """Return when the engine has stored what it holds of ``keys``, or is gone."""
        self._last_export_id += 1
        export_id = self._last_export_id
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exports[export_id] = done
        self.send(Export(export_id, list(keys)))
        try:
            await done
        finally:
            self._exports.pop(export_id, None)

    async def end(self, hurry: asyncio.Event) -> None:
        """Take back all that the engine holds; not to be cancelled. ``hurry``: nobody will get its
        slots after it.
        """
        for export_id in list(self._exports):
            self._finish_export(export_id)
        self.fetches.end()
        if self.layout.num_shards > 1:
            with suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), _SETTLE_S)
        self.stock.give_back()
        await self.fetches.wait_ended()

    def _take(self, message: EngineToNode) -> None:
        match message:
            case Store():
                self._take_stored(message)
            case Fetch():
                check_fetch(message, self.layout)
                self.fetches.start(message)
            case Loaded():
                self.fetches.take_loaded(message)
            case Cancel():
                self.fetches.cancel(message)
            case Pin():
                check_pin(message)
                self._store.pin(self.layout, message)
            case Ended():
                check_ended(message)
                self._store.ended(self.layout, message)
            case Exported():
                self._finish_export(message.export_id)
            case Open():
                raise ProtocolViolation("a second Open")

    def _take_stored(self, message: Store) -> None:
        for stored in message.images:
            check_stored(stored, self.layout)
            if not self.stock.use(stored.offset):
                raise ProtocolViolation(f"a store to offset {stored.offset}, never granted")
            self._store.commit(self.layout, stored)
        self.refill()

    def _finish_export(self, export_id: int) -> None:
        """Ids that nobody waits for any more are as good as unknown ones: nothing hangs on them."""
        done = self._exports.pop(export_id, None)
        if done is not None and not done.done():
            done.set_result(None)
