"""What images of KV blocks are like, and where a rank finds its shards of them. Imports no torch.

Planning and runners make them alike. Must not know who moves what, nor when.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class RankImages:
    """The images in an arena, as one rank sees them."""

    arena: memoryview
    layout: ImageLayout
    rank: int

    def shard(self, transfer: BlockTransfer) -> memoryview:
        """The bytes of this rank."""
        return self._image(transfer).shard(self.rank)

    def seal(self, transfer: BlockTransfer) -> None:
        """Call when the shard's bytes are in place."""
        image = self._image(transfer)
        image.seal_shard(self.rank)
        if self.rank == 0:
            image.write_footer()

    def is_sound(self, transfer: BlockTransfer) -> bool:
        """Whether the shard is what the transfer wants, as it was sealed."""
        return self.holds(transfer) and self._image(transfer).is_shard_sound(self.rank)

    def holds(self, transfer: BlockTransfer) -> bool:
        """Whether there is a place for the image."""
        return 0 <= transfer.offset <= len(self.arena) - self.layout.image_bytes

    def _image(self, transfer: BlockTransfer) -> BlockImage:
        assert self.holds(transfer), f"no image of the arena begins at {transfer.offset}"
        end = transfer.offset + self.layout.image_bytes
        return BlockImage(
            self.layout,
            self.arena[transfer.offset : end],
            BlockKey(transfer.key),
            transfer.num_tokens,
        )
