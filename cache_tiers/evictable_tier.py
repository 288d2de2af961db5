"""A tier whose contents its owner chooses: the local disk, as the node's hierarchy sees it."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from cache_tiers.block_image import ImageLayout
from cache_tiers.keys import BlockKey
from cache_tiers.tier import Tier


class HeldImage(Protocol):
    """An image that a tier holds from before."""

    @property
    def layout(self) -> ImageLayout: ...

    @property
    def key(self) -> BlockKey: ...

    @property
    def num_tokens(self) -> int: ...


class EvictableTier(Tier, Protocol):
    """Nothing leaves it but by ``evict``, ``discard``, or since it was found bad or its file gone.
    What ``load`` did not bring, ``find`` tells whether it is still held.
    """

    def held(self) -> Iterable[HeldImage]:
        """All images, those of earlier processes too."""
        ...

    def free_images(self, layout: ImageLayout) -> int:
        """How many more images there is room for before something must be evicted."""
        ...

    def neighbours(self, layout: ImageLayout, key: BlockKey) -> list[BlockKey]:
        """Keys that must all be evicted, ``key`` too, before another layout has their room."""
        ...

    def evict(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> None:
        """Give up images, if they are here; those being read are read to the end."""
        ...

    def discard(self, layout: ImageLayout, key: BlockKey) -> None:
        """An image that was loaded is wrong all the same: never bring it again."""
        ...
