"""The gateways that are connected to an engine, and what all of them are told.

Must not know credits or requests. Lives on one event loop.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from engine.gateway_link import GatewayLink
from engine.messages import (
    LOAD_PERIOD_S,
    CacheEvents,
    EngineMessage,
    LoadView,
    Peers,
    StepFrame,
)
from engine.rank_messages import SourceFrame


class Gateways:
    """Owner of who is connected."""

    def __init__(self) -> None:
        self._links: dict[int, GatewayLink] = {}
        self._load_changed = asyncio.Event()
        self._encode = msgspec.msgpack.Encoder().encode

    def __len__(self) -> int:
        return len(self._links)

    @property
    def have_successor(self) -> bool:
        """All of them know of another engine that could go on with their requests."""
        return all(gateway.has_successor for gateway in self._links.values())

    def enter(self, gateway: GatewayLink) -> None:
        self._links[gateway.source] = gateway

    def leave(self, gateway: GatewayLink) -> None:
        """Its connection is closed by whoever serves it."""
        gateway.close()
        del self._links[gateway.source]
        self.tell_number()

    def send(self, source: int, message: EngineMessage) -> None:
        """To one of them, if it is still there."""
        gateway = self._links.get(source)
        if gateway is not None:
            gateway.connection.send(self._encode(message))

    def tell(self, message: EngineMessage) -> None:
        """All of them."""
        payload = self._encode(message)
        for gateway in self._links.values():
            gateway.connection.send(payload)

    def tell_number(self) -> None:
        """How many they are."""
        self.tell(Peers(len(self._links)))

    def pass_on(
        self, frames: Sequence[SourceFrame], load: LoadView, events: CacheEvents | None
    ) -> None:
        """Of one step: the frames to whom they are for, events to all, ``load`` with both; others
        hear of the load a little later.
        """
        informed: set[int] = set()
        for frame in frames:
            gateway = self._links.get(frame.source)
            if gateway is not None:
                gateway.connection.send(frame.payload)
                gateway.is_load_stale = False
                informed.add(frame.source)
        others = [gateway for source, gateway in self._links.items() if source not in informed]
        if events is not None:
            self._send_load(others, StepFrame([], load, events))
        elif others:
            for gateway in others:
                gateway.is_load_stale = True
            self._load_changed.set()

    async def share_load(self, current: Callable[[], LoadView]) -> None:
        """Tell the load to gateways whose streams did not bring it, at most once per period."""
        while True:
            await self._load_changed.wait()
            self._load_changed.clear()
            stale = [gateway for gateway in self._links.values() if gateway.is_load_stale]
            self._send_load(stale, StepFrame([], current()))
            await asyncio.sleep(LOAD_PERIOD_S)

    def close(self, reason: str) -> None:
        """The engine is lost: gateways end their open requests when their connection closes."""
        for gateway in self._links.values():
            gateway.connection.close(reason)

    def _send_load(self, gateways: list[GatewayLink], frame: StepFrame) -> None:
        payload = self._encode(frame)
        for gateway in gateways:
            gateway.connection.send(payload)
            gateway.is_load_stale = False
