"""What one step hands to the compiled layers, in memory that is reserved once.

Must not know weights.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import IntArray, RaggedBatch
from engine.layers.rotary import RotaryEmbedding
from engine.native import library


class StepInputs:
    """Owner of the residual stream, the angles and the lists of sequences of one step."""

    def __init__(
        self,
        rotaries: Sequence[RotaryEmbedding],
        kv_layers: Sequence[Tensor],
        *,
        num_groups: int,
        hidden_size: int,
        head_dim: int,
        has_partial: bool,
        max_num_seqs: int,
    ) -> None:
        self._rotaries = rotaries
        self._kv_layers = kv_layers
        self._hidden_size = hidden_size
        self._num_angles = head_dim // 2
        self._has_partial = has_partial
        self._starts: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        self._num_new: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        self._tables: list[IntArray] = []
        self._groups = (library.Group * num_groups)()
        addresses = (kv.data_ptr() for kv in kv_layers)
        self._kv_addresses = (ctypes.c_void_p * len(kv_layers))(*addresses)
        self._max_tokens = 0
        self.step = library.Step(
            starts=self._starts.ctypes.data,
            num_new=self._num_new.ctypes.data,
            groups=self._groups,
            kv_layers=self._kv_addresses,
        )

    def reserve(self, num_tokens: int, scratch_bytes: int) -> None:
        """For steps of up to ``num_tokens``; of more memory than now."""
        self._x = torch.empty(num_tokens, self._hidden_size)
        self._partial = torch.empty(num_tokens if self._has_partial else 0, self._hidden_size)
        num_angles = len(self._rotaries) * num_tokens * self._num_angles
        self._cos, self._sin = torch.empty(num_angles), torch.empty(num_angles)
        self._scratch = torch.empty(scratch_bytes, dtype=torch.uint8)
        self._max_tokens = num_tokens
        self.step.x = self._x.data_ptr()
        self.step.cos, self.step.sin = self._cos.data_ptr(), self._sin.data_ptr()
        self.step.scratch = self._scratch.data_ptr()

    @property
    def num_reserved_bytes(self) -> int:
        """Of all memory that grows with the largest step."""
        reserved = (self._x, self._partial, self._cos, self._sin, self._scratch)
        return sum(tensor.nbytes for tensor in reserved)

    @property
    def max_tokens(self) -> int:
        """For which memory is reserved."""
        return self._max_tokens

    def hidden(self, num_tokens: int) -> Tensor:
        """[num_tokens, hidden_size] The residual stream."""
        return self._x[:num_tokens]

    def partial(self, num_tokens: int) -> Tensor:
        """[num_tokens, hidden_size] A rank's part of a sum."""
        return self._partial[:num_tokens]

    def fill(self, num_tokens: int, batches: Sequence[RaggedBatch]) -> None:
        """All but the residual stream; ``batches`` are one per KV group."""
        first = batches[0]
        num_seqs = len(first.starts)
        if num_seqs > len(self._starts):
            self._starts, self._num_new = (np.zeros(num_seqs, dtype=np.int64) for _ in range(2))
            self.step.starts = self._starts.ctypes.data
            self.step.num_new = self._num_new.ctypes.data
        self._starts[:num_seqs] = first.starts
        self._num_new[:num_seqs] = first.num_tokens
        self.step.num_tokens, self.step.num_seqs = num_tokens, num_seqs
        self.step.block_size = first.block_size
        self._fill_angles(first, num_tokens)
        # Kept until the next step: the compiled one reads them in place.
        self._tables = [_readable(batch.block_tables) for batch in batches]
        for group, batch, table in zip(self._groups, batches, self._tables, strict=True):
            group.block_tables = table.ctypes.data
            group.table_stride = table.strides[0] // table.itemsize
            group.window = batch.window or 0

    def _fill_angles(self, batch: RaggedBatch, num_tokens: int) -> None:
        positions = torch.from_numpy(batch.positions())
        shape = (len(self._rotaries), num_tokens, self._num_angles)
        size = shape[0] * shape[1] * shape[2]
        cos, sin = self._cos[:size].view(shape), self._sin[:size].view(shape)
        for index, rotary in enumerate(self._rotaries):
            rotary.fill(positions, cos[index], sin[index])


def _readable(table: IntArray) -> IntArray:
    """``table`` itself, or a copy, with the entries of a row side by side."""
    is_in_rows = table.strides[1] == table.itemsize and table.strides[0] > 0
    return table if is_in_rows else np.ascontiguousarray(table)
