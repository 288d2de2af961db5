"""What images of KV blocks are like, and where a rank finds its shards of them. Imports no torch.

Planning and runners make them alike. Must not know who moves what, nor when.
"""

from cache_tiers.block_image import BlockImage, ImageLayout, make_fingerprint
from cache_tiers.keys import BlockKey
from engine.config import EngineConfig
from engine.kv_geometry import KV_LAYOUT, KvGeometry
from engine.paced_kv import min_image_bytes
from engine.step import BlockTransfer


def supports_tiers(geometry: KvGeometry) -> bool:
    """Whether blocks of this model can leave the accelerator: one block holds the KV of its tokens
    in all layers, and a prompt that begins alike needs all of them.
    """
    return len(geometry.groups) == 1 and geometry.groups[0].window is None


def image_layout(config: EngineConfig, geometry: KvGeometry, root_key: bytes) -> ImageLayout:
    """Of the images of one model.

    ``geometry`` is that of one rank (``engine_geometry``); ``root_key`` the parent of all keys
    without tenant and adapter (``model_root_key``): it holds weights, dtype and layout.
    """
    assert supports_tiers(geometry), "a block of this model is not all of its tokens' KV"
    num_shards = config.tensor_parallel_size
    shard_bytes = geometry.block_bytes
    if config.runner == "paced":
        needed_bytes = min_image_bytes(config.block_size_tokens)
        shard_bytes = max(needed_bytes, config.paced.block_bytes)
    return ImageLayout(
        fingerprint=make_fingerprint(
            root_key,
            config.runner,
            config.dtype,
            config.quantization,
            KV_LAYOUT,
            config.block_size_tokens,
            num_shards,
            geometry.num_layers,
            geometry.num_kv_heads,
            geometry.head_dim,
            shard_bytes,
        ),
        num_shards=num_shards,
        shard_bytes=shard_bytes,
        block_size_tokens=config.block_size_tokens,
    )


class RankImages:
    """The images in an arena, as one rank sees them."""

    def __init__(self, arena: memoryview, layout: ImageLayout, rank: int) -> None:
        self.layout = layout
        self.rank = rank
        self.arena = arena[:]  # of its own: who mapped it may close the other view
        self._image_bytes = layout.image_bytes
        self._max_offset = len(arena) - layout.image_bytes

    def find(self, transfer: BlockTransfer) -> BlockImage | None:
        """None: no image can lie there."""
        begin = transfer.offset
        if not 0 <= begin <= self._max_offset:
            return None
        memory = self.arena[begin : begin + self._image_bytes]
        return BlockImage(self.layout, memory, BlockKey(transfer.key), transfer.num_tokens)

    def at(self, transfer: BlockTransfer) -> BlockImage:
        """Where to store it."""
        image = self.find(transfer)
        assert image is not None, f"a slot at {transfer.offset} is not of this arena"
        return image

    def seal(self, image: BlockImage) -> None:
        """Call when the bytes of this rank's shard are in place."""
        image.seal_shard(self.rank)
        if self.rank == 0:
            image.write_footer()
