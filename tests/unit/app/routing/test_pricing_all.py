"""Candidates that can't win are not priced: the choice is the one that pricing all would give."""

from hypothesis import example, given
from hypothesis import strategies as st

from app.routing.candidate import (
    ALONE,
    Candidate,
    Choice,
    Gateways,
    HeldPrefix,
    ReplicaRates,
    RouteRequest,
)
from app.routing.cost import num_sharing, others_loss_s, pace, time_to_first_token_s
from app.routing.policy import STAY_RATIO, TIE_S, choose, usual_tokens_per_s
from app.routing.prefill import cheapest_prefill, longest_holder
from app.routing.unseen import unseen_requests
from engine.messages import LoadView

NUM_PROMPT_TOKENS = 8000


def choose_after_pricing_all(request: RouteRequest, candidates: list[Candidate]) -> Choice:
    """The slow twin, for requests without an affinity."""
    holder = longest_holder(candidates, request.rotation)
    unseen = unseen_requests(request.gateways, candidates)
    usual_rate = usual_tokens_per_s(candidates)
    priced = []
    for candidate, num_unseen in zip(candidates, unseen, strict=True):
        its = pace(candidate, usual_rate)
        prefill = cheapest_prefill(request.num_prompt_tokens, candidate, its.token_s, holder)
        num_there = num_sharing(candidate)
        cost_s = time_to_first_token_s(candidate, its, prefill, num_there) + others_loss_s(
            request.num_prompt_tokens, candidate, its, prefill, num_there
        )
        before_s = request.gateways.uncached_tokens * its.token_s
        cost_s += num_unseen * (before_s + prefill.transfer_s + prefill.compute_s)
        priced.append((cost_s, Choice(candidate, prefill.source)))
    least = min(cost_s for cost_s, _ in priced)
    for cost_s, choice in priced:
        stays = choice.candidate.engine_id == request.current
        if stays and cost_s <= least * (1 + STAY_RATIO) + TIE_S:
            return choice
    tied = [choice for cost_s, choice in priced if cost_s <= least + TIE_S]
    fewest = min(choice.candidate.num_in_flight for choice in tied)
    equal = [choice for choice in tied if choice.candidate.num_in_flight == fewest]
    return equal[request.rotation % len(equal)]


TOKENS = st.just(0) | st.integers(0, NUM_PROMPT_TOKENS)
RATES = st.builds(
    ReplicaRates,
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([0.0, 1 / 6000]),
    st.sampled_from([0.0, 1e-8]),
    st.sampled_from([0.0, 150_000.0]),
    st.sampled_from([0.0, 15_000.0]),
    st.sampled_from([0.0, 60_000.0]),
)
CANDIDATES = st.builds(
    Candidate,
    engine_id=st.integers(0, 99).map("e{}".format),
    load=st.builds(
        LoadView,
        num_running=st.integers(0, 40),
        pending_prefill_tokens=st.just(0) | st.integers(0, 20_000),
        num_free_blocks=st.integers(0, 1000),
        num_blocks=st.sampled_from([0, 1000]),
        prefill_tokens_per_s=st.sampled_from([0.0, 4600.0, 6000.0]),
        num_cached_prompt_tokens=st.integers(0, 1000),
        num_prompt_tokens=st.just(1000),
        decode_step_s=st.sampled_from([0.0, 0.025]),
        full_step_tokens=st.sampled_from([0, 2048]),
    ),
    block_size_tokens=st.just(16),
    held=st.builds(HeldPrefix, TOKENS, TOKENS, TOKENS),
    num_in_flight=st.integers(0, 3),
    num_unseen=st.integers(0, 3),
    num_unseen_tokens=TOKENS,
    max_num_seqs=st.sampled_from([0, 32]),
    num_queued_tokens=TOKENS,
    rates=RATES,
    hit_probability=st.sampled_from([1.0, 0.7]),
    age_s=st.sampled_from([0.0, 1.0]),
)
ROUTES = st.builds(
    RouteRequest,
    st.just(NUM_PROMPT_TOKENS) | st.integers(1, NUM_PROMPT_TOKENS),
    current=st.none() | st.integers(0, 99).map("e{}".format),
    rotation=st.integers(0, 99),
    gateways=st.just(ALONE)
    | st.builds(Gateways, st.integers(0, 3), st.just(4), st.floats(0, 5), st.floats(0, 5000)),
)


def replica(engine_id: str, num_pending: int = 0, num_held: int = 0) -> Candidate:
    load = LoadView(pending_prefill_tokens=num_pending, prefill_tokens_per_s=1000.0)
    return Candidate(engine_id, load, 16, HeldPrefix(num_held), 0, 0, 0, 0)


@given(ROUTES, st.lists(CANDIDATES, min_size=1, max_size=8, unique_by=lambda c: c.engine_id))
# One is as much dearer as a tie allows, one as its request bears that waits there, one has all of
# the prompt and a queue that takes nearly as long as to compute it.
@example(RouteRequest(1000), [replica("e0", num_pending=1), replica("e1")])
@example(RouteRequest(1000, current="e0"), [replica("e0", num_pending=50), replica("e1")])
@example(RouteRequest(8000), [replica("e0", num_held=1000), replica("e1", 6900, num_held=8000)])
def test_the_choice_is_that_of_pricing_all(
    request: RouteRequest, candidates: list[Candidate]
) -> None:
    assert choose(request, candidates) == choose_after_pricing_all(request, candidates)
