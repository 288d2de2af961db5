"""Embedding and head: the two ends of a model that are as wide as its vocabulary.

Whole, or cut by token ids among tensor-parallel ranks. Then rank 0 alone gets logits, and whoever
samples from them (`engine.sampling`) may ask for exact ones as often as it likes, so the others
wait for its questions: logits, then any number of exact ones, then the end, for each set of rows.
Must not know who samples, or why.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from engine.collectives import Collectives
from engine.layers.greedy_head import GreedyHead
from engine.layers.linear import Linear
from engine.layers.row_parallel import summable

_NORM_ROWS = 4096
"""In float32 at a time."""


class Vocabulary(Protocol):
    """Of one rank, or of the only one."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether ``logits`` are as good as ``exact_logits``, which then nobody may ask for."""
        ...

    def embed_into(self, token_ids: Tensor, hidden: Tensor) -> None:
        """Write to ``hidden`` [num_tokens, hidden_size] in float32, not scaled; all ranks get all
        of it."""
        ...

    def logits(self, normed: Tensor) -> Tensor:
        """On rank 0: [num_rows, vocab_size] in the weights' dtype or in float32."""
        ...

    def exact_logits(self, normed: Tensor, token_ids: Tensor) -> Tensor:
        """On rank 0, of the rows of ``logits`` but not rounded to the weights' dtype: float32 for
        ``token_ids`` [num_rows, num_tokens]."""
        ...

    @property
    def largest_row_norm(self) -> float | None:
        """On rank 0: of the rows of the matrix that ``logits`` multiplies, in Euclid's norm; None
        where that is not known."""
        ...

    @property
    def greedy_head(self) -> GreedyHead | None:
        """What computes ``logits``, if it can also choose the likeliest tokens."""
        ...

    def finish_rows(self) -> None:
        """On rank 0, when there are no questions left on the rows of ``logits``."""
        ...

    def follow_rows(self, normed: Tensor, exact: Tensor) -> None:
        """On the other ranks: their part of all that rank 0 does with one set of rows, which
        ``normed`` are in the weights' dtype and ``exact`` in float32."""
        ...


class WholeVocabulary:
    """All of it, on the only rank."""

    def __init__(
        self,
        *,
        embedding: Tensor,
        head: Tensor,
        lm_head: Linear,
        is_exact: bool | None = None,
        greedy_head: GreedyHead | None = None,
    ) -> None:
        """``is_exact`` by default where the weights are float32."""
        self._embedding = embedding
        self._head = head
        self._lm_head = lm_head
        self.is_exact = embedding.dtype is torch.float32 if is_exact is None else is_exact
        self.greedy_head = greedy_head

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def embed_into(self, token_ids: Tensor, hidden: Tensor) -> None:
        hidden.copy_(F.embedding(token_ids, self._embedding))

    def logits(self, normed: Tensor) -> Tensor:
        return self._lm_head(normed)

    def exact_logits(self, normed: Tensor, token_ids: Tensor) -> Tensor:
        return _dot(normed, self._head, token_ids)

    @cached_property
    def largest_row_norm(self) -> float | None:
        return max(float(rows.float().norm(dim=-1).max()) for rows in self._head.split(_NORM_ROWS))

    def finish_rows(self) -> None:
        """Nobody waits."""

    def follow_rows(self, normed: Tensor, exact: Tensor) -> None:
        raise AssertionError("a whole vocabulary has no other ranks")


class PartialVocabulary:
    """The token ids ``part`` of one rank; ``embedding`` and ``head`` hold only their rows."""

    def __init__(
        self,
        *,
        embedding: Tensor,
        head: Tensor,
        lm_head: Linear,
        part: range,
        widths: Sequence[int],
        collectives: Collectives,
        is_exact: bool | None = None,
    ) -> None:
        """``is_exact`` by default where the weights are float32."""
        self._embedding = embedding
        self._head = head
        self._lm_head = lm_head
        self._part = part
        self._widths = widths
        self._collectives = collectives
        self.is_exact = embedding.dtype is torch.float32 if is_exact is None else is_exact

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def embed_into(self, token_ids: Tensor, hidden: Tensor) -> None:
        places, is_own = self._places(token_ids)
        vectors = summable(F.embedding(places, self._embedding))
        vectors.masked_fill_(~is_own.unsqueeze(-1), 0.0)
        self._collectives.all_reduce_(vectors)  # exact: all but one are zeros
        hidden.copy_(vectors)

    def logits(self, normed: Tensor) -> Tensor:
        logits = self._collectives.gather(self._lm_head(normed), self._widths)
        assert logits is not None, "rank 0 alone has logits"
        return logits

    def exact_logits(self, normed: Tensor, token_ids: Tensor) -> Tensor:
        assert not self.is_exact, "nobody answers"
        token_ids = token_ids.contiguous()
        self._say_num_ids(token_ids.shape[-1])
        self._collectives.broadcast_(token_ids)
        return self._sum_exact(normed, token_ids)

    @property
    def largest_row_norm(self) -> float | None:
        return None  # each rank knows its own rows

    @property
    def greedy_head(self) -> GreedyHead | None:
        return None  # each rank computes its own logits

    def finish_rows(self) -> None:
        if not self.is_exact:
            self._say_num_ids(0)

    def follow_rows(self, normed: Tensor, exact: Tensor) -> None:
        self._collectives.gather(self._lm_head(normed), self._widths)
        while num_ids := self._hear_num_ids():
            token_ids = torch.empty(len(exact), num_ids, dtype=torch.int64, device=exact.device)
            self._collectives.broadcast_(token_ids)
            self._sum_exact(exact, token_ids)

    def _say_num_ids(self, num_ids: int) -> None:
        self._collectives.broadcast_(torch.tensor([num_ids], device=self._head.device))

    def _hear_num_ids(self) -> int:
        """Token ids per row of the next question; 0 if there is none."""
        if self.is_exact:  # nobody asks, so nobody needs to wait
            return 0
        num_ids = torch.empty(1, dtype=torch.int64, device=self._head.device)
        self._collectives.broadcast_(num_ids)
        return int(num_ids.item())

    def _sum_exact(self, normed: Tensor, token_ids: Tensor) -> Tensor:
        places, is_own = self._places(token_ids)
        logits = _dot(normed, self._head, places).masked_fill_(~is_own, 0.0)
        self._collectives.all_reduce_(logits)
        return logits

    def _places(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of this rank's tensors, any for the ids of others, and which ids are its own."""
        places = token_ids - self._part.start
        is_own = (places >= 0) & (places < len(self._part))
        return places.where(is_own, 0), is_own


def _dot(normed: Tensor, head: Tensor, rows: Tensor) -> Tensor:
    """[num_rows, num_tokens]"""
    # On a CPU a quarter faster than indexing.
    vectors = F.embedding(rows, head).float()  # [num_rows, num_tokens, hidden_size]
    return torch.bmm(vectors, normed.unsqueeze(-1)).squeeze(-1)
