"""Where a prompt's KV comes from on one replica, and how long that takes. Pure functions."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from app.routing.candidate import LOCAL, Candidate, ReplicaRates, Source, SourceKind

_HOST = Source(SourceKind.HOST)
_DISK = Source(SourceKind.DISK)


class Prefill(msgspec.Struct, frozen=True, gc=False):
    """A prefix is transferred from the source, what is missing then is computed."""

    source: Source
    transfer_s: float
    compute_s: float
    transfer_tokens: float = 0.0
    """As expected, from the source."""


class Holder(NamedTuple):
    """Who can lend its prefix to the others."""

    source: Source
    num_tokens: float
    """As expected, with the chance that they are gone."""


def longest_holder(candidates: Sequence[Candidate], rotation: int) -> Holder | None:
    """Who has most of the prompt; one of equals by ``rotation``. None if nobody has anything."""
    held = [c.held.longest * c.hit_probability for c in candidates]
    most = max(held)
    if most <= 0:
        return None
    index = held.index(most)
    if held.count(most) > 1:
        equal = [index for index, num_tokens in enumerate(held) if num_tokens == most]
        index = equal[rotation % len(equal)]
    return Holder(Source(SourceKind.PEER, candidates[index].engine_id), most)


def longest_lender(
    candidates: Sequence[Candidate], rotation: int, holder: Holder | None
) -> Holder | None:
    """The same among those from which others can pull; ``holder`` is the longest of all."""
    lenders = [candidate for candidate in candidates if candidate.can_lend]
    if len(lenders) == len(candidates):
        return holder
    return longest_holder(lenders, rotation) if lenders else None


def cheapest_prefill(
    num_prompt_tokens: int, candidate: Candidate, token_s: float, lender: Holder | None = None
) -> Prefill:
    """Of all sources that the replica can load from, ``lender`` among them; of equal ones the
    nearest. ``token_s``: of each token that it computes.
    """
    rates, held, chance = candidate.rates, candidate.held, candidate.hit_probability
    near = chance * held.accelerator_tokens
    if near > num_prompt_tokens:
        near = num_prompt_tokens
    source, transfer_s, present = LOCAL, 0.0, near
    compute_s = _compute_s(num_prompt_tokens, near, rates, token_s)
    loaded, load_s = near, 0.0
    if rates.host_tokens_per_s > 0:
        reached = min(chance * held.host_tokens, num_prompt_tokens)
        if reached > loaded:
            load_s, loaded = (reached - loaded) / rates.host_tokens_per_s, reached
            left_s = _compute_s(num_prompt_tokens, reached, rates, token_s)
            if load_s + left_s < transfer_s + compute_s:
                source, transfer_s, compute_s, present = _HOST, load_s, left_s, reached
    if rates.disk_tokens_per_s > 0:
        reached = min(chance * held.disk_tokens, num_prompt_tokens)
        if reached > loaded:
            load_s += (reached - loaded) / rates.disk_tokens_per_s
            left_s = _compute_s(num_prompt_tokens, reached, rates, token_s)
            if load_s + left_s < transfer_s + compute_s:
                source, transfer_s, compute_s, present = _DISK, load_s, left_s, reached
    if lender is not None and rates.peer_tokens_per_s > 0:
        reached = min(lender.num_tokens, num_prompt_tokens)
        if reached > near and lender.source.peer_id != candidate.engine_id:
            reached = near + candidate.pull_probability * (reached - near)
            load_s = (reached - near) / rates.peer_tokens_per_s
            left_s = _compute_s(num_prompt_tokens, reached, rates, token_s)
            if load_s + left_s < transfer_s + compute_s:
                source, transfer_s, compute_s, present = lender.source, load_s, left_s, reached
    return Prefill(source, transfer_s, compute_s, present - near)


def _compute_s(
    num_prompt_tokens: int, num_present: float, rates: ReplicaRates, token_s: float
) -> float:
    # The last prompt token is always computed, or there would be nothing to sample from.
    num_missing = num_prompt_tokens - num_present
    if num_missing < 1.0:
        num_missing = 1.0
    depth = num_prompt_tokens - 0.5 * num_missing
    return num_missing * (token_s + rates.prefill_attended_s * depth)
