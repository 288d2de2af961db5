"""What a request costs on one replica, in seconds: until its first token, and of what others lose.
Pure functions. Must not compare replicas.

    time to the first token = a step + queue + prefill (transfer, too) + wait for a place
    others' loss = KV displaced from memory + what decodes wait for the prefill (their TPOT)
"""

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


def token_s(candidate: Candidate, usual_rate: float = UNKNOWN_PREFILL_TOKENS_PER_S) -> float:
    """Of each prompt token that is computed there.

    ``usual_rate``: prefill tokens/s of an engine that has not measured its own yet. A slow guess
    would keep requests away from it for ever, and so it would never be measured.
    """
    fitted_s, num_full = candidate.rates.prefill_token_s, candidate.load.full_step_tokens
    if fitted_s > 0:
        # A long queue is computed in full steps, each of which decodes, too. Where all steps were
        # full, a fit can't tell what is a token's and what is the step's: only their sum is known.
        return fitted_s + (step_s(candidate) / num_full if num_full > 0 else 0.0)
    return 1.0 / max(candidate.load.prefill_tokens_per_s or usual_rate, _SLOWEST_TOKENS_PER_S)


def step_s(candidate: Candidate) -> float:
    """A step without prompts; as long as nothing is fitted, any step."""
    load = candidate.load
    return load.decode_step_s or candidate.rates.prefill_base_s or load.step_time_s


def time_to_first_token_s(candidate: Candidate, token_s: float, prefill: Prefill) -> float:
    load = candidate.load
    # An engine doesn't count what it expects to find cached, a gateway has not looked.
    num_before = load.pending_prefill_tokens + candidate.num_unseen_tokens
    queue_s = (num_before + candidate.num_queued_tokens * _uncached_share(load)) * token_s
    places_s = load.mean_answer_s or MEAN_ANSWER_S
    return (
        # Half of it for the step amid which it comes, half for its last tokens, that fill none.
        step_s(candidate)
        + queue_s
        + prefill.transfer_s
        + prefill.compute_s
        + _place_wait_s(num_sharing(candidate), candidate.max_num_seqs, places_s)
    )


def others_loss_s(
    num_prompt_tokens: int, candidate: Candidate, token_s: float, prefill: Prefill
) -> float:
    """What the request takes from those that are there, and from those that come later."""
    load = candidate.load
    # They decode no token while its prompt is computed.
    slower_s = ANSWER_SECOND * (step_s(candidate) + prefill.compute_s)
    loss_s = num_sharing(candidate) * slower_s
    if load.num_blocks <= 0:  # not measured
        return loss_s
    num_new = max(1, num_prompt_tokens - candidate.num_cached_tokens)
    # KV that has to be freed first was somebody's work; it is about as much to be done again.
    num_freed = max(0, num_new - load.num_free_blocks * candidate.block_size_tokens)
    # Of prefixes that are only kept, somebody may come back for some.
    num_evicted = max(0, num_new - num_freed - load.num_empty_blocks * candidate.block_size_tokens)
    chance = COLDEST_SHARE * (1.0 - _uncached_share(load))
    return loss_s + (num_freed + chance * num_evicted) * token_s


def num_sharing(candidate: Candidate) -> int:
    """Samples that are there or on their way."""
    load = candidate.load
    # A view may be older than the submits before it: there are at least this gateway's own.
    return max(load.num_running + load.num_waiting + candidate.num_unseen, candidate.num_in_flight)


def _uncached_share(load: LoadView) -> float:
    """Of the prompts that the engine has admitted so far."""
    if load.num_prompt_tokens <= 0:
        return 1.0
    return max(0.0, 1 - load.num_cached_prompt_tokens / load.num_prompt_tokens)


def _place_wait_s(num_before: int, max_num_seqs: int, mean_answer_s: float) -> float:
    """Little's law: of full places one becomes free every ``mean_answer_s / max_num_seqs``."""
    if max_num_seqs == 0:
        return 0.0
    return max(0, num_before + 1 - max_num_seqs) * mean_answer_s / max_num_seqs
