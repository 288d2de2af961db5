"""Moves the KV of a runner without a model to and from images in the node's arena.

An image begins with the digests of its positions and is as large as the configuration says: bytes
move as they do for a model of that size. Must not know plans or slots.
"""

from collections.abc import Sequence

from engine.kv_images import RankImages
from engine.paced_kv import PacedKv
from engine.step import BlockTransfer


class PacedTransfer:
    """Between one ``PacedKv`` and one arena."""

    def __init__(self, kv: PacedKv, images: RankImages) -> None:
        self._kv = kv
        self._images = images
        self._memory = memoryview(bytearray(images.layout.shard_bytes))
        """Stands for a block of the pool: what is copied from and to."""

    def store(self, transfers: Sequence[BlockTransfer]) -> None:
        """Write the images of blocks; they are complete when this returns."""
        for transfer in transfers:
            image = self._images.at(transfer)
            self._kv.write_image(transfer.block_id, transfer.num_tokens, self._memory)
            image.shard(self._images.rank)[:] = self._memory
            self._images.seal(image)

    def load(self, transfers: Sequence[BlockTransfer]) -> tuple[int, ...]:
        """Fill blocks from images; indices of those that are not what they should be, whose blocks
        are then empty.
        """
        rank = self._images.rank
        failed = []
        for index, transfer in enumerate(transfers):
            image = self._images.find(transfer)
            if image is not None:
                self._memory[:] = image.shard(rank)
            if image is not None and image.is_shard_sound(rank):
                self._kv.read_image(transfer.block_id, transfer.num_tokens, self._memory)
            else:
                self._kv.clear([transfer.block_id])
                failed.append(index)
        return tuple(failed)

    def compare(self, transfers: Sequence[BlockTransfer]) -> tuple[int, ...]:
        """Indices of blocks whose KV is not the image's."""
        return tuple(
            index for index, transfer in enumerate(transfers) if not self._is_same(transfer)
        )

    def _is_same(self, transfer: BlockTransfer) -> bool:
        rank = self._images.rank
        image = self._images.find(transfer)
        return (
            image is not None
            and image.is_shard_sound(rank)
            and self._kv.equals_image(transfer.block_id, transfer.num_tokens, image.shard(rank))
        )
