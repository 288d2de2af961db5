"""Images as one model has them, in memory that direct I/O can use. Must not know tiers."""

import mmap
import random

from cache_tiers.block_image import BlockImage, ImageLayout, make_fingerprint
from cache_tiers.keys import BlockKey
from engine.kv_geometry import KvGeometry, KvGroup

GEOMETRY = KvGeometry(
    (KvGroup(tuple(range(30))),),
    num_kv_heads=3,
    head_dim=64,
    block_size_tokens=16,
    bytes_per_element=2,
)
"""Of SmolLM2 135M in bfloat16: 360 KiB a block."""
LAYOUT = ImageLayout(
    make_fingerprint("benchmark"), 1, GEOMETRY.block_bytes, GEOMETRY.block_size_tokens
)


def aligned_memory(num_bytes: int) -> memoryview:
    """Writable, of pages that are there already."""
    mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = memoryview(mapping)
    for begin in range(0, num_bytes, mmap.PAGESIZE):
        memory[begin] = 0
    return memory


def make_images(num_images: int, memory: memoryview, *, first_number: int = 0) -> list[BlockImage]:
    """One after the other in ``memory``, which holds anything; their keys count up."""
    size = LAYOUT.image_bytes
    return [
        BlockImage(
            LAYOUT,
            memory[index * size : (index + 1) * size],
            BlockKey((first_number + index).to_bytes(16, "little")),
            LAYOUT.block_size_tokens,
        )
        for index in range(num_images)
    ]


def fill(images: list[BlockImage], *, seed: int = 0) -> None:
    """Random data, sealed."""
    draw = random.Random(seed)
    for image in images:
        image.shard(0)[:] = draw.randbytes(LAYOUT.shard_bytes)
        image.write_footer()
        image.seal_shard(0)
