"""The paged KV pool: one tensor, cut into blocks that the planner hands out by number.

All KV groups take blocks from it. A block serves one group at a time and holds the KV of all its
layers, so the n-th layers of all groups share a view and differ by their block tables.

While the replica sleeps the pool has no memory, but its views stay; on the CPU the addresses are
the same ones afterwards. Must not know sequences or who owns a block.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine import huge_pages
from engine.kv_geometry import KvGeometry
from engine.step import BlockCopy


class KvPool:
    """Owner of the KV memory of one model."""

    def __init__(
        self, geometry: KvGeometry, num_blocks: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (
            geometry.layers_per_block,
            num_blocks,
            geometry.block_size_tokens,
            2,
            geometry.num_kv_heads,
            geometry.head_dim,
        )
        self._num_bytes = math.prod(shape) * dtype.itemsize
        self._mapped: huge_pages.MappedMemory | None = None
        if device.type == "cpu":
            self._mapped = huge_pages.MappedMemory(self._num_bytes)
            self._mapped.touch()
            self._blocks = self._mapped.content.view(dtype).view(shape)
        else:
            self._blocks = torch.empty(shape, dtype=dtype, device=device)
        views = self._blocks.flatten(1, 2).unbind(0)
        place_of = {
            layer: place for group in geometry.groups for place, layer in enumerate(group.layers)
        }
        self.layers: tuple[Tensor, ...] = tuple(
            views[place_of[layer]] for layer in range(geometry.num_layers)
        )
        """Per layer [num_blocks * block_size, 2, num_kv_heads, head_dim]: row ``b * block_size +
        i`` holds key and value of token ``i`` of block ``b``."""

    def free(self) -> None:
        """Give the memory back. Nobody reads or writes a view until ``allocate``."""
        if self._mapped is not None:
            self._mapped.free()
            return
        self._blocks.untyped_storage().resize_(0)  # views share the storage, and follow it
        if self._blocks.is_cuda:
            torch.cuda.empty_cache()

    def allocate(self) -> None:
        """Have the memory again after ``free``, with nothing of use in it. Raises what torch raises
        where there is too little.
        """
        if self._mapped is not None:
            self._mapped.touch()
        else:
            self._blocks.untyped_storage().resize_(self._num_bytes)

    @property
    def block_rows(self) -> Tensor:
        """The pool's bytes: [layers_per_block, num_blocks, bytes of a block in one layer]."""
        return self._blocks.flatten(2).view(torch.uint8)

    def block(self, block_id: int) -> Tensor:
        """[layers_per_block, block_size, 2, num_kv_heads, head_dim]."""
        return self._blocks[:, block_id]

    def poison(self, block_ids: Sequence[int] | None = None) -> None:
        """Fill blocks (all of them without an argument) with NaN, so that reading them shows."""
        if block_ids is None:
            self._blocks.fill_(torch.nan)
        else:
            self._blocks[:, list(block_ids)] = torch.nan

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, all layers; no block is both a source and a destination."""
        sources = [copy.src for copy in copies]
        self._blocks[:, [copy.dst for copy in copies]] = self._blocks[:, sources]
