"""What a node's service asks of the hierarchy behind it (``cache_tiers.node_store``).

Offsets are the arena's. A slot that was granted and an image that was leased stay where they are
until they are given back; all else the store may move, copy and drop. Runs on one event loop.
"""

from collections.abc import Sequence
from typing import Protocol

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Ended, Fetch, Found, Loaded, MediaEvents, Pin, Stored
from cache_tiers.tier import Tier, TierKind


class FetchOutcome(Protocol):
    """What a fetch brought."""

    @property
    def images(self) -> Sequence[Found]:
        """Leased; leading blocks after those that the engine holds, a partial one last."""
        ...

    @property
    def predicted_s(self) -> float: ...

    @property
    def fetch_s(self) -> float: ...


class ImageStore(Protocol):
    """Keys are of one layout; what one layout holds another never sees."""

    def grant(self, layout: ImageLayout, num: int) -> list[int]:
        """Up to ``num`` slots that an engine may write."""
        ...

    def give_back(self, layout: ImageLayout, offsets: Sequence[int]) -> None:
        """Slots that were granted and are not used."""
        ...

    def commit(self, layout: ImageLayout, stored: Stored) -> bool:
        """An engine has filled a granted slot, which is the store's again. False: not kept."""
        ...

    async def fetch(self, layout: ImageLayout, fetch: Fetch, peer: Tier | None) -> FetchOutcome:
        """Bring what is worth it into the arena, by ``fetch.timeout_s``. Nothing is leased after
        a cancellation.
        """
        ...

    def release(self, layout: ImageLayout, offsets: Sequence[int]) -> None:
        """End leases, one for each offset."""
        ...

    def discard(self, layout: ImageLayout, key: BlockKey) -> None:
        """What is held under ``key`` was found to be bad: nobody gets it again."""
        ...

    def pin(self, layout: ImageLayout, pin: Pin) -> int:
        """How many images are pinned now that were not."""
        ...

    def ended(self, layout: ImageLayout, ended: Ended) -> None: ...

    def record_load(self, layout: ImageLayout, loaded: Loaded) -> None: ...

    async def lend(
        self, layout: ImageLayout, keys: Sequence[BlockKey]
    ) -> Sequence[BlockImage | None]:
        """Images in the arena, in the order of ``keys``, that stay until ``release_lent``; a
        cancelled call has lent nothing.
        """
        ...

    def release_lent(self, images: Sequence[BlockImage]) -> None:
        """What ``lend`` returned, or a part of it, isn't read any more."""
        ...

    def take_events(self, layout: ImageLayout) -> Sequence[MediaEvents]:
        """What media gained and lost since the last call."""
        ...

    def take_gone(self, layout: ImageLayout) -> Sequence[bytes]: ...

    def held(self, layout: ImageLayout, kind: TierKind) -> Sequence[bytes]:
        """What a router would know of a medium if it had seen all events."""
        ...
