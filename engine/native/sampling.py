"""The compiled library's ways to choose tokens; torch's are their twin."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.base import IntArray
from engine.native.library import StepLibrary
from engine.sampling.kernels import MAX_NEAR, NearLargest


class NativeSampling:
    """``SamplingKernels``, with memory for ``max_samples``, and for more once they come."""

    def __init__(
        self, calls: StepLibrary, *, vocab_size: int, num_threads: int, max_samples: int
    ) -> None:
        self._calls = calls
        self._vocab_size = vocab_size
        self._num_threads = num_threads
        calls.use_threads(num_threads)
        self._scratch = np.empty(calls.sampling_scratch_bytes(vocab_size), dtype=np.uint8)
        self._reserve(max_samples)

    def find_near_largest(
        self, logits: Tensor, rows: IntArray, margins: NDArray[np.float32]
    ) -> NearLargest:
        num_samples = self._prepare(logits, rows)
        assert len(margins) == num_samples
        assert margins.dtype == np.float32
        self._calls.find_near_largest(
            logits.data_ptr(),
            self._vocab_size,
            rows.ctypes.data,
            margins.ctypes.data,
            num_samples,
            MAX_NEAR,
            self._scratch.ctypes.data,
            self._ids.ctypes.data,
            self._num_found.ctypes.data,
        )
        return NearLargest(self._ids[:num_samples], self._num_found[:num_samples])

    def draw(self, scores: Tensor, rows: IntArray, columns: NDArray[np.float64]) -> IntArray:
        num_samples = self._prepare(scores, rows)
        assert columns.shape == (5, num_samples)
        assert columns.dtype == np.float64
        assert columns.flags.c_contiguous
        self._calls.draw_tokens(
            scores.data_ptr(),
            self._vocab_size,
            rows.ctypes.data,
            columns.ctypes.data,
            num_samples,
            self._scratch.ctypes.data,
            self._tokens.ctypes.data,
        )
        return self._tokens[:num_samples]

    def _prepare(self, logits: Tensor, rows: IntArray) -> int:
        """What the library cannot see: it would read anywhere."""
        assert logits.is_contiguous()
        assert logits.shape[-1] == self._vocab_size
        assert rows.dtype == np.int64
        assert rows.flags.c_contiguous
        self._calls.use_threads(self._num_threads)
        if len(rows) > len(self._tokens):
            self._reserve(len(rows))
        return len(rows)

    def _reserve(self, max_samples: int) -> None:
        self._tokens: IntArray = np.empty(max_samples, dtype=np.int64)
        self._ids: IntArray = np.empty((max_samples, MAX_NEAR), dtype=np.int64)
        self._num_found: NDArray[np.int32] = np.empty(max_samples, dtype=np.int32)
