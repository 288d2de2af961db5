"""The output layer by the compiled step: logits in float32."""

import torch
from torch import Tensor

from engine.native import library
from engine.native.pack_file import PackedWeights


class PanelHead:
    """A ``Linear`` whose output is float32, whatever its weights are."""

    def __init__(
        self,
        fields: library.Linear,
        weights: PackedWeights,
        calls: library.StepLibrary,
        *,
        num_threads: int,
        max_rows: int,
    ) -> None:
        self._fields = fields
        self._weights = weights  # what ``fields`` points to
        self._calls = calls
        self._num_threads = num_threads
        self._max_rows = 0
        self._reserve(max_rows)

    def __call__(self, x: Tensor) -> Tensor:
        """Of rows in the weights' dtype; valid until the next call."""
        rows = x.float().contiguous()
        self._reserve(len(rows))
        logits = self._logits[: len(rows)]
        self._calls.use_threads(self._num_threads)
        self._calls.compute_logits(
            self._fields,
            rows.data_ptr(),
            len(rows),
            logits.data_ptr(),
            self._scratch.data_ptr(),
        )
        return logits

    def _reserve(self, num_rows: int) -> None:
        if num_rows <= self._max_rows:
            return
        self._calls.use_threads(self._num_threads)
        num_bytes = self._calls.logits_scratch_bytes(self._fields, num_rows)
        self._scratch = torch.empty(num_bytes, dtype=torch.uint8)
        self._logits = torch.empty(num_rows, self._fields.out_features)
        self._max_rows = num_rows
