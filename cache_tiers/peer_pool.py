"""Connections to other nodes' caches, one ``Tier`` each, made when one is first asked for.

Must not know how a peer is talked to.
"""

import asyncio
from collections.abc import Callable

from cache_tiers.messages import PeerAddress
from cache_tiers.tier import Tier

MakePeer = Callable[[PeerAddress], Tier]

MAX_PEERS = 64


class PeerPool:
    """Owner of the tiers; the one that was asked for least lately is closed when there are many."""

    def __init__(self, make_peer: MakePeer) -> None:
        self._make_peer = make_peer
        self._tiers: dict[PeerAddress, Tier] = {}
        """The one asked for last stands last."""
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, address: PeerAddress) -> Tier:
        """Raises ``TierError`` if nothing like it can be reached."""
        tier = self._tiers.pop(address, None)
        if tier is None:
            tier = self._make_peer(address)
            if len(self._tiers) == MAX_PEERS:
                oldest = next(iter(self._tiers))
                self._close_later(self._tiers.pop(oldest))
        self._tiers[address] = tier
        return tier

    async def close(self) -> None:
        """Return when all are closed."""
        while self._tiers:
            _, tier = self._tiers.popitem()
            self._close_later(tier)
        if self._closing:
            await asyncio.wait(self._closing)

    def _close_later(self, tier: Tier) -> None:
        task = asyncio.create_task(tier.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
