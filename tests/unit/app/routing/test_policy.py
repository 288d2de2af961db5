"""The choice of an engine, as a pure function."""

import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.candidate import (
    LOCAL,
    Candidate,
    Gateways,
    HeldPrefix,
    ReplicaRates,
    RouteRequest,
    Source,
    SourceKind,
)
from app.routing.policy import (
    TIE_S,
    choose,
    cost_s,
    outlook,
    power_of_two,
    usual_tokens_per_s,
)
from engine.messages import LoadView

IDLE = LoadView(num_blocks=1000, num_free_blocks=1000, prefill_tokens_per_s=1000, step_time_s=0.02)


def candidate(engine_id: str = "e0", load: LoadView = IDLE, **fields: Any) -> Candidate:
    idle = Candidate(
        engine_id=engine_id,
        load=load,
        block_size_tokens=16,
        held=HeldPrefix(),
        num_in_flight=0,
        num_unseen=0,
        num_unseen_tokens=0,
        max_num_seqs=0,
    )
    return msgspec.structs.replace(idle, **fields)


def loaded(**fields: int | float) -> LoadView:
    return msgspec.structs.replace(IDLE, **fields)


def test_a_cached_prefix_attracts() -> None:
    cold, warm = candidate("cold"), candidate("warm", held=HeldPrefix(1024), num_in_flight=3)
    assert choose(RouteRequest(1100), [cold, warm]).candidate.engine_id == "warm"


def test_a_long_queue_outweighs_a_cached_prefix() -> None:
    idle = candidate("idle")
    busy = candidate("busy", loaded(pending_prefill_tokens=4000), held=HeldPrefix(1024))
    assert choose(RouteRequest(1100), [idle, busy]).candidate.engine_id == "idle"


def test_what_this_gateway_just_sent_counts_at_once() -> None:
    sent = candidate("sent", num_unseen=1, num_unseen_tokens=500)
    assert choose(RouteRequest(100), [sent, candidate("free")]).candidate.engine_id == "free"


def test_running_sequences_cost_a_step_each() -> None:
    busy = candidate("busy", loaded(num_running=16))
    assert choose(RouteRequest(100), [busy, candidate("free")]).candidate.engine_id == "free"


def test_an_engine_without_a_place_is_chosen_only_for_a_prefix_that_saves_more() -> None:
    full = candidate("full", loaded(num_running=4), max_num_seqs=4)
    slower = candidate("slower", loaded(num_running=3, step_time_s=0.03), max_num_seqs=4)
    assert choose(RouteRequest(100), [full, slower]).candidate.engine_id == "slower"
    warm = msgspec.structs.replace(full, held=HeldPrefix(4096))
    assert choose(RouteRequest(4000), [warm, slower]).candidate.engine_id == "full"


def test_a_view_that_is_older_than_the_last_submits_hides_none_of_them() -> None:
    sent = candidate("sent", num_in_flight=4)
    assert choose(RouteRequest(100), [sent, candidate("free")]).candidate.engine_id == "free"


def test_an_engine_that_says_it_needs_for_ever_attracts_nobody() -> None:
    slow = candidate("slow", loaded(prefill_tokens_per_s=5e-324))
    assert choose(RouteRequest(100), [slow, candidate("free")]).candidate.engine_id == "free"
    assert math.isfinite(outlook(100, slow).ttft_s)
    assert math.isfinite(outlook(100, candidate(), usual_rate=5e-324).ttft_s)


def test_full_memory_repels() -> None:
    full = candidate("full", loaded(num_free_blocks=0))
    assert choose(RouteRequest(500), [full, candidate("free")]).candidate.engine_id == "free"


def test_ties_keep_the_current_engine_then_the_least_busy_then_rotate() -> None:
    unmeasured = loaded(step_time_s=0.0)
    busy = candidate("busy", unmeasured, num_in_flight=1)
    a, b = candidate("a", unmeasured), candidate("b", unmeasured)
    assert choose(RouteRequest(10, current="busy"), [busy, a, b]).candidate.engine_id == "busy"
    assert {
        choose(RouteRequest(10, rotation=turn), [busy, a, b]).candidate.engine_id
        for turn in range(4)
    } == {"a", "b"}


LOADS = st.builds(
    LoadView,
    num_running=st.integers(0, 64),
    num_waiting=st.integers(0, 64),
    pending_prefill_tokens=st.integers(0, 10**6),
    num_free_blocks=st.integers(0, 1000),
    num_blocks=st.integers(0, 1000),
    prefill_tokens_per_s=st.floats(0, 10**6),
    step_time_s=st.floats(0, 10),
)
CANDIDATES = st.builds(
    Candidate,
    engine_id=st.sampled_from(["a", "b", "c"]),
    load=LOADS,
    block_size_tokens=st.just(16),
    held=st.builds(HeldPrefix, st.integers(0, 10**5)),
    num_in_flight=st.integers(0, 100),
    num_unseen=st.integers(0, 100),
    num_unseen_tokens=st.integers(0, 10**6),
    max_num_seqs=st.integers(0, 100),
)


@given(
    st.integers(1, 10**5),
    st.lists(CANDIDATES, min_size=1, max_size=5, unique_by=lambda c: c.engine_id),
    st.integers(0, 10),
)
def test_the_choice_is_among_the_cheapest(
    num_prompt_tokens: int, candidates: list[Candidate], rotation: int
) -> None:
    chosen = choose(RouteRequest(num_prompt_tokens, rotation=rotation), candidates).candidate
    usual = usual_tokens_per_s(candidates)
    request = RouteRequest(num_prompt_tokens)
    cheapest = min(cost_s(request, candidate, usual) for candidate in candidates)
    assert chosen in candidates
    assert cost_s(request, chosen, usual) <= cheapest + TIE_S


@given(st.integers(1, 10**5), CANDIDATES, st.integers(0, 10**5))
def test_more_cached_tokens_never_cost_more(
    num_prompt_tokens: int, candidate: Candidate, num_more: int
) -> None:
    warmer = msgspec.structs.replace(
        candidate, held=HeldPrefix(candidate.num_cached_tokens + num_more)
    )
    request = RouteRequest(num_prompt_tokens)
    assert cost_s(request, warmer) <= cost_s(request, candidate) * (1 + 1e-9)


def test_power_of_two_takes_the_less_busy_of_two_and_each_pair_in_time() -> None:
    loads = {"a": 0, "b": 1, "c": 2, "d": 3}
    candidates = [candidate(name, loaded(num_running=num)) for name, num in loads.items()]
    chosen = Counter(
        power_of_two(RouteRequest(100, rotation=turn), candidates).candidate.engine_id
        for turn in range(6000)
    )
    # Of the six pairs "a" is in three, "b" beats two others, "c" one.
    expected = {"a": 3000, "b": 2000, "c": 1000}
    assert chosen.keys() == expected.keys()
    assert all(abs(chosen[name] - number) < 200 for name, number in expected.items())


def test_power_of_two_needs_no_second_candidate() -> None:
    assert (
        power_of_two(RouteRequest(100, rotation=3), [candidate("only")]).candidate.engine_id
        == "only"
    )


def test_an_engine_that_has_measured_nothing_is_tried() -> None:
    """Were it taken for a slow one, it would never have anything to measure."""
    measured = candidate("measured", loaded(prefill_tokens_per_s=10_000, num_running=1))
    fresh = candidate("fresh", LoadView())
    assert choose(RouteRequest(1000), [measured, fresh]).candidate.engine_id == "fresh"


def test_what_an_engine_expects_to_find_cached_is_not_discounted_again() -> None:
    waiting = loaded(
        pending_prefill_tokens=4000,
        num_waiting_tokens=3000,
        num_prompt_tokens=1000,
        num_cached_prompt_tokens=500,
    )
    assert outlook(100, candidate("a", waiting)).ttft_s == pytest.approx(0.02 + 4.1)
    queued = candidate("a", waiting, num_queued_tokens=1000)
    assert outlook(100, queued).ttft_s == pytest.approx(0.02 + 4.1 + 0.5), "nobody looked for these"


def test_a_queue_takes_the_steps_that_it_fills() -> None:
    """However a fit divides the time of full steps between a step and its tokens."""
    for token_s, step_s in ((1e-3, 0.02), (0.99e-3, 0.03)):
        load = loaded(
            pending_prefill_tokens=9000, num_running=1, decode_step_s=step_s, full_step_tokens=1000
        )
        fitted = candidate("a", load, rates=ReplicaRates(prefill_token_s=token_s))
        assert outlook(1000, fitted).ttft_s == pytest.approx(step_s + 10 * 1.02)


def test_a_replica_without_a_fit_is_taken_for_a_usual_one() -> None:
    rates = ReplicaRates(prefill_base_s=0.03, prefill_token_s=1e-3)
    new = candidate("new", LoadView(full_step_tokens=1000), rates=rates)
    assert outlook(1000, new).ttft_s == pytest.approx(0.03 + 1.03)


def test_the_more_decode_the_less_a_long_prompt_is_welcome() -> None:
    few = candidate("few", loaded(num_running=1, pending_prefill_tokens=500))
    many = candidate("many", loaded(num_running=21))
    assert choose(RouteRequest(100), [few, many]).candidate.engine_id == "many"
    assert choose(RouteRequest(2000), [few, many]).candidate.engine_id == "few"


def test_a_first_token_takes_a_step_beside_its_tokens() -> None:
    assert outlook(1, candidate("idle")).ttft_s == pytest.approx(0.021)
    decoding = loaded(num_running=1, decode_step_s=0.03)
    assert outlook(1, candidate("busy", decoding)).ttft_s == pytest.approx(0.031)


def test_a_prefix_is_pulled_once_the_queue_at_its_holder_costs_more() -> None:
    rates = ReplicaRates(peer_tokens_per_s=10_000)
    idle = candidate("idle", rates=rates)
    for pending, engine_id in ((50, "holder"), (500, "idle")):
        holder = candidate(
            "holder",
            loaded(pending_prefill_tokens=pending),
            held=HeldPrefix(1000, 1000, 1000),
            rates=rates,
        )
        choice = choose(RouteRequest(1100), [holder, idle])
        assert choice.candidate.engine_id == engine_id
        expected = Source(SourceKind.PEER, "holder") if engine_id == "idle" else LOCAL
        assert choice.source == expected


def test_gateways_that_see_the_same_old_views_do_not_jump_on_one_replica() -> None:
    replicas = [candidate(f"e{number}", age_s=1.0) for number in range(8)]
    chosen = {
        choose(
            RouteRequest(1000, gateways=Gateways(rank, 4, 1.0, 1000.0)), replicas
        ).candidate.engine_id
        for rank in range(4)
    }
    assert len(chosen) == 4


def test_new_prefixes_go_to_one_place_from_every_gateway_and_different_ones_spread() -> None:
    replicas = [candidate(f"e{number}") for number in range(8)]
    places = Counter[str]()
    for affinity in range(400):
        chosen = {
            choose(
                RouteRequest(1000, affinity=affinity, rotation=turn), replicas
            ).candidate.engine_id
            for turn in range(4)
        }
        assert len(chosen) == 1
        places.update(chosen)
    assert max(places.values()) < 2 * min(places.values())


def test_what_a_placement_evicts_counts_by_the_chance_that_it_is_wanted_again() -> None:
    reused = loaded(num_prompt_tokens=100, num_cached_prompt_tokens=90)
    roomy = candidate("roomy", msgspec.structs.replace(reused, num_empty_blocks=1000))
    full = candidate("full", reused)
    assert choose(RouteRequest(1000), [full, roomy]).candidate.engine_id == "roomy"
    request = RouteRequest(1000)
    assert cost_s(request, full) - cost_s(request, roomy) == pytest.approx(0.2 * 0.9 * 1.0)
    assert cost_s(request, candidate("unused")) == cost_s(request, roomy), "nobody comes back"


WILD = st.sampled_from([0.0, 1e-300, 1.0, 1e300, float("inf")])
WILD_CANDIDATES = st.builds(
    Candidate,
    engine_id=st.uuids().map(str),
    load=st.builds(
        LoadView,
        num_running=st.integers(0, 10**9),
        pending_prefill_tokens=st.integers(0, 10**15),
        num_free_blocks=st.integers(-10, 10**9),
        num_blocks=st.integers(0, 10**9),
        prefill_tokens_per_s=WILD,
        step_time_s=WILD,
        mean_answer_s=WILD,
    ),
    block_size_tokens=st.integers(1, 10**6),
    held=st.builds(HeldPrefix, *3 * [st.integers(0, 10**9)]),
    num_in_flight=st.integers(0, 10**9),
    num_unseen=st.integers(0, 10**9),
    num_unseen_tokens=st.integers(0, 10**15),
    max_num_seqs=st.integers(0, 3),
    rates=st.builds(ReplicaRates, *6 * [WILD]),
    hit_probability=st.floats(0, 1),
    age_s=WILD,
)


@given(
    st.integers(1, 10**9),
    st.lists(WILD_CANDIDATES, min_size=1, max_size=4),
    st.builds(Gateways, st.integers(0, 99), st.integers(1, 99), WILD, WILD),
    st.integers(0, 2**64),
)
def test_whatever_engines_claim_one_is_chosen(
    num_prompt_tokens: int, candidates: list[Candidate], gateways: Gateways, rotation: int
) -> None:
    request = RouteRequest(num_prompt_tokens, rotation=rotation, gateways=gateways)
    choice = choose(request, candidates)
    assert choice.candidate in candidates
    assert choice.source.peer_id != choice.candidate.engine_id
    for each in candidates:
        assert cost_s(request, each) >= 0  # false for NaN
