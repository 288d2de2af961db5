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
            shard = self._images.shard(transfer)
            self._kv.write_image(transfer.block_id, transfer.num_tokens, self._memory)
            shard[:] = self._memory
            self._images.seal(transfer)

    def load(self, transfers: Sequence[BlockTransfer]) -> tuple[int, ...]:
        """Fill blocks from images; indices of those that are not what they should be, whose blocks
        are then empty.
        """
        failed = []
        for index, transfer in enumerate(transfers):
            if self._images.holds(transfer):
                self._memory[:] = self._images.shard(transfer)
            if self._images.is_sound(transfer):
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
        return self._images.is_sound(transfer) and self._kv.equals_image(
            transfer.block_id, transfer.num_tokens, self._images.shard(transfer)
        )
