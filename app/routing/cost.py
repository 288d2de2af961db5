"""What a request costs on one replica, in seconds: until its first token, and of what others lose.
Pure functions. Must not compare replicas.

    time to the first token = a step + queue + prefill (transfer, too) + wait for a place
    others' loss = KV displaced from memory + what decodes wait for the prefill (their TPOT)
"""

import msgspec

from app.routing.candidate import Candidate
from app.routing.prefill import Prefill
from engine.messages import LoadView

UNKNOWN_PREFILL_TOKENS_PER_S = 1000.0
"""Until an engine has measured its own, or others have: it only weighs prefill against steps."""

_SLOWEST_TOKENS_PER_S = 1e-6
"""Whatever an engine says of itself, costs stay finite."""

ANSWER_SECOND = 0.7 / 16
"""Of a second before the first token: what one is worth that somebody loses amid an answer. As the
promises stand to each other: a first token within 700 ms, 400 tokens at 40 ms.
"""

MEAN_ANSWER_S = 10.0
"""How long an answer keeps its place, until the engine has measured it: 400 tokens at 25 ms."""

COLDEST_SHARE = 0.2
"""Of the chance that a cached token is found again: that of those which are evicted next. Nobody
needed them for as long as it takes the cache to turn over.
"""


class Pace(msgspec.Struct, frozen=True, gc=False):
    """What a replica takes for any prompt that comes now."""

    step_s: float
    """Of a step without prompts; as long as nothing is fitted, of any step."""
    token_s: float
    """Of each prompt token that is computed."""
    wait_s: float
    """Until the prompts before it are computed, and a step."""


def pace(candidate: Candidate, usual_rate: float = UNKNOWN_PREFILL_TOKENS_PER_S) -> Pace:
    """``usual_rate``: prefill tokens/s of an engine that has not measured its own yet. A slow guess
    would keep requests away from it for ever, and so it would never be measured.
    """
    rates, load = candidate.rates, candidate.load
    step_s = load.decode_step_s or rates.prefill_base_s or load.step_time_s
    token_s = rates.prefill_token_s
    if token_s <= 0:
        rate = load.prefill_tokens_per_s or usual_rate
        token_s = 1.0 / max(rate, _SLOWEST_TOKENS_PER_S)
    elif load.full_step_tokens > 0:
        # A long queue is computed in full steps, each of which decodes, too. Where all steps were
        # full, a fit can't tell what is a token's and what is the step's: only their sum is known.
        token_s += step_s / load.full_step_tokens
    # An engine doesn't count what it expects to find cached, a gateway has not looked.
    num_before: float = load.pending_prefill_tokens + candidate.num_unseen_tokens
    if candidate.num_queued_tokens:
        num_before += candidate.num_queued_tokens * _uncached_share(load)
    # Half of the step for the one amid which it comes, half for its last tokens, that fill none.
    return Pace(step_s, token_s, step_s + num_before * token_s)


def num_sharing(candidate: Candidate) -> int:
    """Samples that are there or on their way."""
    load = candidate.load
    # A view may be older than the submits before it: there are at least this gateway's own.
    num_shown = load.num_running + load.num_waiting + candidate.num_unseen
    return max(num_shown, candidate.num_in_flight)


def time_to_first_token_s(
    candidate: Candidate, pace: Pace, prefill: Prefill, num_sharing: int
) -> float:
    time_s = pace.wait_s + prefill.transfer_s + prefill.compute_s
    num_places = candidate.max_num_seqs
    num_too_many = num_sharing + 1 - num_places
    if num_places == 0 or num_too_many <= 0:
        return time_s
    # Little's law: of full places one becomes free every ``mean_answer_s / max_num_seqs``.
    return time_s + num_too_many * (candidate.load.mean_answer_s or MEAN_ANSWER_S) / num_places


def others_loss_s(
    num_prompt_tokens: int, candidate: Candidate, pace: Pace, prefill: Prefill, num_sharing: int
) -> float:
    """What the request takes from those that are there, and from those that come later."""
    load = candidate.load
    # They decode no token while its prompt is computed.
    loss_s = num_sharing * (ANSWER_SECOND * (pace.step_s + prefill.compute_s))
    if load.num_blocks <= 0:  # not measured
        return loss_s
    block_size = candidate.block_size_tokens
    num_new = max(1, num_prompt_tokens - candidate.held.accelerator_tokens)
    # KV that has to be freed first was somebody's work; it is about as much to be done again.
    num_freed = max(0, num_new - load.num_free_blocks * block_size)
    # Of prefixes that are only kept, somebody may come back for some.
    num_evicted = max(0, num_new - num_freed - load.num_empty_blocks * block_size)
    chance = COLDEST_SHARE * (1.0 - _uncached_share(load))
    return loss_s + (num_freed + chance * num_evicted) * pace.token_s


def _uncached_share(load: LoadView) -> float:
    """Of the prompts that the engine has admitted so far."""
    if load.num_prompt_tokens <= 0:
        return 1.0
    return max(0.0, 1 - load.num_cached_prompt_tokens / load.num_prompt_tokens)
