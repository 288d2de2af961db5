"""A node's arena without a node."""

import mmap

from cache_tiers.block_image import ImageLayout
from engine.step import BlockTransfer

SOCKET_PATH = "/no/socket"


def make_arena(layout: ImageLayout, num_images: int) -> memoryview:
    return memoryview(mmap.mmap(-1, num_images * layout.image_bytes))


def transfer(
    layout: ImageLayout, block_id: int, slot: int, *, key: bytes | None = None, num_tokens: int = 0
) -> BlockTransfer:
    """Between a block and the ``slot``-th image; all tokens of the block unless told."""
    return BlockTransfer(
        block_id,
        slot * layout.image_bytes,
        key or slot.to_bytes(16, "little"),
        num_tokens or layout.block_size_tokens,
    )
