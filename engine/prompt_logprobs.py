"""Log probabilities of prompt tokens: a logit row for each of them, a bounded number at a time."""

from torch import Tensor

from engine.attention.base import IntArray
from engine.messages import TokenLogprobs
from engine.models.output_head import OutputHead
from engine.sampling.logprobs import token_logprobs

_MAX_ROWS = 64
"""A row of logits takes a megabyte and more in a vocabulary of 262,144."""


def score_tokens(
    head: OutputHead, hidden: Tensor, token_ids: IntArray, num_top: int
) -> tuple[TokenLogprobs, ...]:
    """How likely each token was after the position whose last hidden state is its row of
    ``hidden`` [num_tokens, hidden_size]."""
    scores: list[TokenLogprobs] = []
    for begin in range(0, len(token_ids), _MAX_ROWS):
        rows = hidden[begin : begin + _MAX_ROWS]

        def rescore(ids: Tensor, rows: Tensor = rows) -> Tensor:
            return head.exact_logits(rows, ids)

        scores += token_logprobs(
            head.logits(rows), token_ids[begin : begin + _MAX_ROWS], num_top, rescore
        )
        head.finish_rows()
    return tuple(scores)


def follow_scoring(head: OutputHead, hidden: Tensor) -> None:
    """What ranks other than 0 do while rank 0 scores the same rows."""
    for rows in hidden.split(_MAX_ROWS) if len(hidden) else ():
        head.follow_rows(rows)
