"""Random draws: temperature, then top-k, top-p and min-p, then the inverse of the cumulative
distribution in the order of token ids, where a filtered token has no width.

transformers' warpers in their order, except for equals: tokens that tie with the last one of a
top-k or a nucleus belong to it, so that no order among them matters. (vLLM applies min-p before
top-k and top-p, so there a nucleus is a share of what min-p left; here it is a share of the top-k.)

Filters keep the likeliest tokens, which are found without sorting the vocabulary; rows whose
kept tokens are more than a few are drawn from whole rows, as unfiltered ones are. Which way a row
goes depends on that row alone. Must not know slots and seeds.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling.chunking import rows_per_chunk
from engine.sampling.likeliest import likeliest

_NUM_CANDIDATES = 128
"""Usual filters keep fewer; twice as many cost 40 % more to find."""
_NUM_COPIES = 4
"""Of a whole row while it is filtered; fewer rows at a time make up for them."""


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How each row is drawn; float64, each [num_rows, 1], on the device of the logits."""

    temperature: Tensor
    """Above 0."""
    top_k: Tensor
    """The vocabulary's size where there is none."""
    top_p: Tensor
    """1 where there is none."""
    min_p: Tensor
    """0 where there is none."""
    uniform: Tensor
    """Random numbers in [0, 1)."""

    @classmethod
    def on_device(cls, columns: NDArray[np.float64], device: torch.device) -> Self:
        """From ``columns`` [5, num_rows], the fields in their order: one transfer."""
        return cls(*torch.from_numpy(columns).to(device).unsqueeze(-1))

    def of_rows(self, rows: Tensor) -> Self:
        return type(self)(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.uniform[rows],
        )


def draw_unfiltered(scores: Tensor, params: DrawParams) -> Tensor:
    """[num_rows] Token ids, of ``scores`` [num_rows, vocab_size] in float32; temperature only."""
    return _invert_(_softmax(scores, params).double(), params.uniform)


def draw_filtered(scores: Tensor, params: DrawParams) -> Tensor:
    """[num_rows] Token ids, of ``scores`` [num_rows, vocab_size] in float32: those that
    `filtered_weights` give, faster."""
    candidates = likeliest(scores, _NUM_CANDIDATES)
    num_candidates = candidates.ids.shape[-1]
    last_of_top_k = (params.top_k.long() - 1).clamp(max=num_candidates - 1)
    kth_score = candidates.values.gather(-1, last_of_top_k)
    in_top_k = candidates.values.masked_fill(candidates.values < kth_score, -torch.inf)
    weights = _softmax(in_top_k, params)
    has_top_k = params.top_k < scores.shape[-1]
    # A nucleus without a top-k is a share of the whole vocabulary.
    rows = (~has_top_k & (params.top_p < 1)).flatten().nonzero().flatten()
    if len(rows):
        whole = _softmax(_pick(scores, rows), params.of_rows(rows))
        weights[rows] = whole.gather(-1, candidates.ids[rows])
    kept = _from(weights, _threshold(weights, params))

    in_id_order = candidates.ids.argsort(dim=-1)
    places = _invert_(kept.gather(-1, in_id_order), params.uniform)
    places = in_id_order.gather(-1, places[:, None])
    tokens = candidates.ids.gather(-1, places).flatten()
    if num_candidates < scores.shape[-1]:
        is_top_k_inside = kth_score > candidates.values[:, -1:]
        is_total_known = is_top_k_inside | ~has_top_k | (params.top_p >= 1)
        is_complete = (kept[:, -1:] == 0) & is_total_known
        incomplete = (~is_complete).flatten().nonzero().flatten()
        num_rows = max(1, rows_per_chunk(scores) // _NUM_COPIES)
        for rows in incomplete.split(num_rows) if len(incomplete) else ():
            subset = params.of_rows(rows)
            weights = filtered_weights(_pick(scores, rows), subset)
            tokens[rows] = _invert_(weights, subset.uniform)
    return tokens


def filtered_weights(scores: Tensor, params: DrawParams) -> Tensor:
    """[num_rows, vocab_size] in float64: probabilities of the scaled distribution, 0 for filtered
    tokens, not normalized again. Exact for any filter, at the price of two sorts."""
    if (params.top_k < scores.shape[-1]).any():
        kth_score = _sorted_down(scores).gather(-1, params.top_k.long() - 1)
        scores = scores.masked_fill(scores < kth_score, -torch.inf)
    weights = _softmax(scores, params)
    return _from(weights, _threshold(_sorted_down(weights), params))


def _softmax(scores: Tensor, params: DrawParams) -> Tensor:
    """The scaled distribution in float32."""
    shifted = scores - scores.amax(dim=-1, keepdim=True)  # keeps tiny temperatures finite
    return torch.softmax(shifted.div_(params.temperature.float()), dim=-1)


def _threshold(weights: Tensor, params: DrawParams) -> Tensor:
    """[num_rows, 1] Smallest weight that top-p and min-p keep, of ``weights`` [num_rows, k] in
    falling order. The nucleus is the fewest likeliest tokens whose sum reaches ``top_p``."""
    last = torch.searchsorted(weights.double().cumsum_(dim=-1), params.top_p)
    # By rounding the sum may stay below top_p: then all are in.
    in_nucleus = weights.gather(-1, last.clamp_(max=weights.shape[-1] - 1))
    in_nucleus = in_nucleus.where(params.top_p < 1, 0.0)
    return torch.maximum(in_nucleus, weights[:, :1] * params.min_p.float())


def _from(weights: Tensor, threshold: Tensor) -> Tensor:
    """``weights`` in float64, those below ``threshold`` as 0."""
    # Four times as fast as masked_fill, which stumbles over masks without a pattern.
    return (weights * (weights >= threshold)).double()


def _sorted_down(values: Tensor) -> Tensor:
    """Each row in falling order."""
    if values.device.type == "cpu":  # numpy's vectorized sort is 25 times as fast as torch's
        negated = -values
        negated.numpy().sort(axis=-1)
        return negated.neg_()
    return values.sort(dim=-1, descending=True).values


def _pick(scores: Tensor, rows: Tensor) -> Tensor:
    return scores if len(rows) == len(scores) else scores.index_select(0, rows)


def _invert_(weights: Tensor, uniform: Tensor) -> Tensor:
    """[num_rows] Where the cumulative sum of ``weights`` [num_rows, k] in float64, overwritten,
    passes the share ``uniform`` of its total."""
    cumulative = weights.cumsum_(dim=-1)
    total = cumulative[:, -1:]
    # Rounding must not lift a target to the total, beyond the last token.
    below_total = torch.nextafter(total, torch.zeros_like(total))
    targets = torch.minimum(uniform * total, below_total)
    places = torch.searchsorted(cumulative, targets, right=True).flatten()
    return places.clamp_(max=weights.shape[-1] - 1)  # NaN rows have no place
