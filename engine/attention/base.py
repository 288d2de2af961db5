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
    """[num_seqs, max_blocks] Pool blocks in the order of positions; only those from the first
    visible to the last new token are meant, the rest of a row is arbitrary."""
    block_size: int
    window: int | None = None
    """Tokens that a token attends to, itself included; None: all before it."""

    @property
    def token_starts(self) -> IntArray:
        """[num_seqs] Where a sequence's new tokens begin in the flat token dimension."""
        return np.cumsum(self.num_tokens) - self.num_tokens

    @property
    def context_lens(self) -> IntArray:
        """[num_seqs] Tokens that the last new token attends to, itself included."""
        return self.starts + self.num_tokens

    @property
    def context_begins(self) -> IntArray:
        """[num_seqs] Position of the first token that any new token attends to."""
        if self.window is None:
            return np.zeros_like(self.starts)
        return np.maximum(0, self.starts + 1 - self.window)

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
        """[context_len - context_begin] Pool rows of what sequence ``index`` attends to, up to its
        last new token."""
        positions = np.arange(self.context_begins[index], self.context_lens[index])
        block, offset = np.divmod(positions, self.block_size)
        rows: IntArray = self.block_tables[index, block] * self.block_size + offset
        return rows


class StepAttention(Protocol):
    """Causal attention over the paged pool, for the sequences of one step; called once per layer
    of a KV group."""

    def __call__(self, query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
        """Write ``new_kv`` to the pool, then attend: [num_tokens, num_heads * head_dim].

        ``query`` is [num_tokens, num_heads, head_dim], ``new_kv`` [num_tokens, 2, num_kv_heads,
        head_dim], both rotated; ``kv`` is the layer's pool (`KvPool.layers`). Pool rows that no
        sequence of the step has written, or that lie before its window, are never read: they may
        hold NaN, or what others wrote.
        """
        ...


class AttentionBackend(Protocol):
    """Makes everything that all layers of a KV group share in a step (indices, masks) once."""

    def prepare(self, batch: RaggedBatch) -> StepAttention: ...
