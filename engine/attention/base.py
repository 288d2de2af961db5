"""What attention gets and gives. One back end per kind of device; ``reference`` is the twin of all
of them."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """The sequences of one step. Their new tokens lie one after the other in the flat token
    dimension."""

    starts: IntArray
    """[num_seqs] Position of a sequence's first new token: this many tokens lie in the pool
    already."""
    num_tokens: IntArray
    """[num_seqs] New tokens, at least one each."""
    block_tables: IntArray
    """[num_seqs, max_blocks] Pool blocks in the order of positions; only those up to the last new
    token are meant, what follows in a row is arbitrary."""
    block_size: int

    @property
    def token_starts(self) -> IntArray:
        """[num_seqs] Where a sequence's new tokens begin in the flat token dimension."""
        return np.cumsum(self.num_tokens) - self.num_tokens

    @property
    def context_lens(self) -> IntArray:
        """[num_seqs] Tokens that the last new token attends to, itself included."""
        return self.starts + self.num_tokens

    def positions(self) -> IntArray:
        """[num_tokens] Position of every new token."""
        flat = np.arange(int(self.num_tokens.sum()), dtype=np.int64)
        return flat + np.repeat(self.starts - self.token_starts, self.num_tokens)

    def new_rows(self) -> IntArray:
        """[num_tokens] Pool row that gets the KV of every new token."""
        sequence = np.repeat(np.arange(len(self.starts)), self.num_tokens)
        block, offset = np.divmod(self.positions(), self.block_size)
        rows: IntArray = self.block_tables[sequence, block] * self.block_size + offset
        return rows

    def context_rows(self, index: int) -> IntArray:
        """[context_len] Pool rows of sequence ``index``, up to its last new token."""
        block, offset = np.divmod(np.arange(self.context_lens[index]), self.block_size)
        rows: IntArray = self.block_tables[index, block] * self.block_size + offset
        return rows


class StepAttention(Protocol):
    """Causal attention over the paged pool, for the sequences of one step; called once per
    layer."""

    def __call__(self, query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
        """Write ``new_kv`` to the pool, then attend: [num_tokens, num_heads * head_dim].

        ``query`` is [num_tokens, num_heads, head_dim], ``new_kv`` [num_tokens, 2, num_kv_heads,
        head_dim], both rotated; ``kv`` is the layer's pool (`KvPool.layers`). Pool rows that no
        sequence of the step has written never influence the result, even if they hold NaN.
        """
        ...


class AttentionBackend(Protocol):
    """Makes everything that all layers of a step share (indices, masks) once."""

    def prepare(self, batch: RaggedBatch) -> StepAttention: ...
