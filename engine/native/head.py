"""The output layer by the compiled step: logits in float32, and the likeliest tokens of rows that
need no more. Must not know who wants which."""

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import IntArray
from engine.layers.greedy_head import PickedLogits, Wishes
from engine.native import library
from engine.native.pack_file import PackedWeights


class PanelHead:
    """A ``Linear`` whose output is float32, whatever its weights are, and a ``GreedyHead``."""

    def __init__(
        self,
        fields: library.Linear,
        weights: PackedWeights,
        calls: library.StepLibrary,
        *,
        table: Tensor | None,
        num_threads: int,
        max_rows: int,
    ) -> None:
        """``table`` [vocab_size, hidden_size] in bfloat16 is what the weights were packed of, and
        gives exact logits; None if those of the packed weights are."""
        assert table is None or (table.dtype is torch.bfloat16 and table.is_contiguous())
        self._fields = fields
        self._weights = weights  # what ``fields`` points to
        self._calls = calls
        self._table = table
        self._num_threads = num_threads
        self._max_rows = 0
        self._reserve(max_rows)

    def __call__(self, x: Tensor) -> Tensor:
        """Of rows in the weights' dtype; valid until the next call."""
        return self._compute(x.float().contiguous(), None)

    def pick(self, normed: Tensor, wishes: Wishes, *, largest_row_norm: float) -> PickedLogits:
        assert len(wishes) == len(normed)
        assert wishes.dtype == np.uint8
        assert wishes.flags.c_contiguous
        assert normed.dtype is torch.float32
        assert normed.is_contiguous()
        self._reserve(len(normed))
        table = self._table
        greedy = library.Greedy(
            wishes=wishes.ctypes.data,
            table=None if table is None else table.data_ptr(),
            largest_norm=largest_row_norm,
            tokens=self._tokens.ctypes.data,
        )
        return PickedLogits(self._compute(normed, greedy), self._tokens[: len(normed)])

    def _compute(self, rows: Tensor, greedy: library.Greedy | None) -> Tensor:
        self._reserve(len(rows))
        logits = self._logits[: len(rows)]
        self._calls.use_threads(self._num_threads)
        self._calls.compute_logits(
            self._fields,
            rows.data_ptr(),
            len(rows),
            logits.data_ptr(),
            self._scratch.data_ptr(),
            greedy,
        )
        return logits

    def _reserve(self, num_rows: int) -> None:
        if num_rows <= self._max_rows:
            return
        self._calls.use_threads(self._num_threads)
        num_bytes = self._calls.logits_scratch_bytes(self._fields, num_rows)
        self._scratch = torch.empty(num_bytes, dtype=torch.uint8)
        self._logits = torch.empty(num_rows, self._fields.out_features)
        self._tokens: IntArray = np.empty(num_rows, dtype=np.int64)
        self._max_rows = num_rows
