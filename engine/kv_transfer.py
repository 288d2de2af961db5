"""Moves KV between the pool and images in the node's arena, and proves what it brings.

An image's shard is the pool's rows of one block, a layer after the other. Must not know plans,
sequences or whose an image is.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cache_tiers.tier import TierError
from engine.kv_comparison import is_same_kv
from engine.kv_images import RankImages
from engine.kv_pool import KvPool
from engine.step import BlockTransfer

_MIN_BLOCKS_OF_THREAD = 8
"""Handing work to a thread takes as long as moving one small block or two."""


class BlockCopier(Protocol):
    """Copies the KV of one block to or from a shard. Owner: ``KvTransfer``."""

    def copy_out(self, block_id: int, shard: memoryview) -> None: ...

    def copy_in(self, block_id: int, shard: memoryview) -> None: ...

    def wait(self) -> None:
        """Until what was begun is in place."""


class HostCopier:
    """For a pool in CPU memory; safe to call from several threads for different blocks."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows.numpy()  # which copies strided rows three times as fast as torch

    def copy_out(self, block_id: int, shard: memoryview) -> None:
        rows = self._rows[:, block_id]
        np.frombuffer(shard, dtype=np.uint8).reshape(rows.shape)[...] = rows

    def copy_in(self, block_id: int, shard: memoryview) -> None:
        rows = self._rows[:, block_id]
        rows[...] = np.frombuffer(shard, dtype=np.uint8).reshape(rows.shape)

    def wait(self) -> None:
        """Nothing to wait for: copies are done when they return."""


class DeviceCopier:
    """For a pool on a CUDA device: copies stand in the current stream, before what follows them."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def copy_out(self, block_id: int, shard: memoryview) -> None:
        rows = self._rows[:, block_id]
        host = torch.frombuffer(shard, dtype=torch.uint8).view(rows.shape)
        host.copy_(rows, non_blocking=True)

    def copy_in(self, block_id: int, shard: memoryview) -> None:
        rows = self._rows[:, block_id]
        host = torch.frombuffer(shard, dtype=torch.uint8).view(rows.shape)
        rows.copy_(host, non_blocking=True)

    def wait(self) -> None:
        torch.cuda.current_stream(self._rows.device).synchronize()


class KvTransfer:
    """Between one pool and one arena. Owner of the arena's registration with the device."""

    def __init__(self, kv_pool: KvPool, images: RankImages, *, num_threads: int = 1) -> None:
        """``num_threads``: that copy, in CPU memory. Raises ``TierError`` where a device can't copy
        from and to the arena.
        """
        rows = kv_pool.block_rows
        row_bytes = rows.shape[0] * rows.shape[2]
        assert row_bytes == images.layout.shard_bytes, "an image holds one block"
        self._kv_pool = kv_pool
        self._images = images
        self._pinned: Tensor | None = None
        self._copier: BlockCopier
        if rows.device.type == "cuda":
            self._pinned = _pin(images.arena)
            self._copier = DeviceCopier(rows)
            num_threads = 1  # the device copies; the host only checks
        else:
            self._copier = HostCopier(rows)
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None

    def store(self, transfers: Sequence[BlockTransfer]) -> None:
        """Write the images of blocks; they are complete when this returns."""
        if self._pinned is None:
            self._share(self._store_part, transfers)
            return
        images = list(map(self._images.at, transfers))
        for transfer, image in zip(transfers, images, strict=True):
            self._copier.copy_out(transfer.block_id, image.shard(self._images.rank))
        self._copier.wait()
        for image in images:
            self._images.seal(image)

    def load(self, transfers: Sequence[BlockTransfer]) -> tuple[int, ...]:
        """Fill blocks from images; indices of those that are not what they should be, whose blocks
        then hold nothing of use. The arena may change when this returns.
        """
        sound = self._share(self._load_part, transfers)
        self._copier.wait()
        return tuple(index for index, is_sound in enumerate(sound) if not is_sound)

    def compare(self, transfers: Sequence[BlockTransfer]) -> tuple[int, ...]:
        """Indices of blocks whose KV is not the same as the image's, apart from rounding."""
        return tuple(
            index for index, transfer in enumerate(transfers) if not self._is_same(transfer)
        )

    def close(self) -> None:
        """Let go of the arena."""
        if self._threads is not None:
            self._threads.shutdown()
        if self._pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.data_ptr())

    def _store_part(self, transfers: Sequence[BlockTransfer]) -> list[bool]:
        for transfer in transfers:
            image = self._images.at(transfer)
            self._copier.copy_out(transfer.block_id, image.shard(self._images.rank))
            self._images.seal(image)  # while the shard is in the processor's cache
        return []

    def _load_part(self, transfers: Sequence[BlockTransfer]) -> list[bool]:
        rank = self._images.rank
        sound = []
        for transfer in transfers:
            image = self._images.find(transfer)
            if image is not None:
                self._copier.copy_in(transfer.block_id, image.shard(rank))
            # Not before the copy, which brings the shard into the processor's cache.
            sound.append(image is not None and image.is_shard_sound(rank))
        return sound

    def _is_same(self, transfer: BlockTransfer) -> bool:
        rank = self._images.rank
        image = self._images.find(transfer)
        if image is None or not image.is_shard_sound(rank):
            return False
        block = self._kv_pool.block(transfer.block_id)
        shard = torch.frombuffer(image.shard(rank), dtype=torch.uint8).to(block.device)
        expected = shard.view(block.dtype).view(block.shape)
        return is_same_kv(block[:, : transfer.num_tokens], expected[:, : transfer.num_tokens])

    def _share(
        self,
        move: Callable[[Sequence[BlockTransfer]], list[bool]],
        transfers: Sequence[BlockTransfer],
    ) -> list[bool]:
        """``move`` them all, on several threads where there are enough."""
        num_parts = min(self._num_threads, len(transfers) // _MIN_BLOCKS_OF_THREAD)
        if self._threads is None or num_parts < 2:
            return move(transfers)
        size = -(-len(transfers) // num_parts)
        parts = [transfers[begin : begin + size] for begin in range(0, len(transfers), size)]
        others = [self._threads.submit(move, part) for part in parts[1:]]
        moved = move(parts[0])
        for other in others:
            moved += other.result()
        return moved


def _pin(arena: memoryview) -> Tensor:
    """Register the arena with the device, which can then copy while the host goes on."""
    pinned = torch.frombuffer(arena, dtype=torch.uint8)
    status = torch.cuda.cudart().cudaHostRegister(pinned.data_ptr(), pinned.numel(), 0)
    if int(status) != 0:
        raise TierError(
            f"the device takes no arena of {pinned.numel()} bytes (CUDA error {status})"
        )
    return pinned
