"""The KV of a runner without a model: it remembers the tokens that wrote it.

The KV of a position is a digest of all tokens up to it. Reading stale, missing or foreign KV, and
writing to or freeing what others hold, raises ``KvMismatchError``. Must not know slots or plans.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.errors import KvMismatchError
from engine.step import NO_BLOCK, BlockCopy

ROOT_DIGEST = 0x9E3779B97F4A7C15
"""Stands before the first token of every sequence."""
_DIGEST_BYTES = 8


def min_image_bytes(block_size_tokens: int) -> int:
    """What the image of a block takes: a digest for each position, and the one before them."""
    return (1 + block_size_tokens) * _DIGEST_BYTES


@dataclass(slots=True)
class _KvBlock:
    """The KV of one block."""

    parent: int = 0
    """Digest of the position before the block."""
    digests: list[int] = field(default_factory=list)
    """One for each position written."""


class PacedKv:
    """Owner of the blocks, and of how many block tables hold each."""

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self._block_size = block_size_tokens
        self._num_blocks = num_blocks
        self.allocate()

    def allocate(self) -> None:
        """All blocks anew: nothing was written, nobody holds one."""
        self._blocks = [_KvBlock() for _ in range(self._num_blocks)]
        self._num_holders = [0] * self._num_blocks

    def free(self) -> None:
        """There are no blocks until ``allocate``."""
        self._blocks, self._num_holders = [], []

    def hold(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if block_id != NO_BLOCK:
                self._num_holders[block_id] += 1

    def unhold(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if block_id != NO_BLOCK:
                self._num_holders[block_id] -= 1

    def clear(self, block_ids: Iterable[int]) -> None:
        """Forget the content of blocks that were freed."""
        for block_id in block_ids:
            self._check_unheld(block_id, "freed")
            self._blocks[block_id] = _KvBlock()

    def copy(self, copy: BlockCopy) -> None:
        self._check_unheld(copy.dst, "overwritten by a copy")
        source = self._blocks[copy.src]
        self._blocks[copy.dst] = _KvBlock(source.parent, source.digests.copy())

    def write_image(self, block_id: int, num_tokens: int, shard: memoryview) -> None:
        """Put the KV of the block's first ``num_tokens`` where its image is."""
        block = self._blocks[block_id]
        if len(block.digests) < num_tokens:
            raise KvMismatchError(f"block {block_id} is stored where nothing was written")
        content = array("Q", (block.parent, *block.digests[:num_tokens])).tobytes()
        shard[: len(content)] = content

    def read_image(self, block_id: int, num_tokens: int, shard: memoryview) -> None:
        """Take the KV of a block from its image."""
        self._check_unheld(block_id, "overwritten by a load")
        parent, *digests = shard[: (1 + num_tokens) * _DIGEST_BYTES].cast("Q")
        self._blocks[block_id] = _KvBlock(parent, digests)

    def equals_image(self, block_id: int, num_tokens: int, shard: memoryview) -> bool:
        """Whether the block's first ``num_tokens`` have the KV of the image."""
        block = self._blocks[block_id]
        parent, *digests = shard[: (1 + num_tokens) * _DIGEST_BYTES].cast("Q")
        return (parent, digests) == (block.parent, block.digests[:num_tokens])

    def read(self, table: list[int], begin: int, end: int) -> int:
        """The digest at position ``end - 1``; all blocks from that of ``begin`` on are followed."""
        digest: int | None = None
        for index in range(begin // self._block_size, -(-end // self._block_size)):
            block_id = table[index]
            if block_id == NO_BLOCK:
                raise KvMismatchError(f"entry {index} of a block table is read behind its window")
            block = self._blocks[block_id]
            num_read = min(self._block_size, end - index * self._block_size)
            if len(block.digests) < num_read:
                raise KvMismatchError(f"block {block_id} is read where nothing was written")
            if index == 0:
                digest = ROOT_DIGEST
            if digest not in (None, block.parent):
                raise KvMismatchError(f"block {block_id} does not continue the block before it")
            digest = block.digests[num_read - 1]
        assert digest is not None, "nothing is read"
        return digest

    def write(self, table: list[int], position: int, parent: int, digest: int) -> None:
        index, offset = divmod(position, self._block_size)
        block_id = table[index]
        block = self._blocks[block_id]
        if self._num_holders[block_id] != 1:
            raise KvMismatchError(f"block {block_id} is written while others hold it")
        if offset == 0:
            block.parent = parent
        elif len(block.digests) < offset:
            raise KvMismatchError(f"block {block_id} is written with a hole before offset {offset}")
        del block.digests[offset:]
        block.digests.append(digest)

    def _check_unheld(self, block_id: int, what: str) -> None:
        if self._num_holders[block_id] > 0:
            raise KvMismatchError(f"block {block_id} is {what} while a running sequence holds it")
