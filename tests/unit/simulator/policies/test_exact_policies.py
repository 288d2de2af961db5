"""Policies that know what is cached. All figures are worked out by hand."""

from app.routing.candidate import LOCAL, Choice, HeldPrefix, RouteRequest, Source, SourceKind
from simulator.policies.dynamo import dynamo, dynamo_tuned
from simulator.policies.least_ttft import conductor, least_ttft, least_ttft_with_pull
from simulator.policies.llm_d import llm_d, llm_d_precise
from tests.unit.simulator.policies.seen_replicas import seen

REQUEST = RouteRequest(1000)


def held(num_tokens: int) -> HeldPrefix:
    return HeldPrefix(num_tokens)


def named(choice: Choice) -> tuple[str, Source]:
    return choice.candidate.engine_id, choice.source


def test_dynamo_weighs_missing_prefill_and_blocks_in_flight_alike() -> None:
    # Costs: 10 - 8 + 0 + 30 + 10 = 42, and 10 + 5 + 16 + 10 = 41 blocks.
    fleet = [
        seen("a", held=held(800), active_blocks=30),
        seen("b", prefill_tokens=500, active_blocks=16),
    ]
    assert dynamo(REQUEST, fleet).candidate.engine_id == "b"
    # Tuned: 16 * 2 + 40 = 72, and 16 * 15 + 26 = 266.
    assert dynamo_tuned(REQUEST, fleet).candidate.engine_id == "a"


def test_dynamo_credits_the_host_three_quarters_and_the_disk_a_quarter() -> None:
    # Credit: 2 + 0.75 * 4 + 0.25 * 4 = 6 blocks, between 5 and 7 on the device.
    tiers = seen("tiers", held=HeldPrefix(200, 600, 1000))
    for num_held, expected in ((500, "tiers"), (700, "device")):
        fleet = [tiers, seen("device", held=held(num_held))]
        assert dynamo(REQUEST, fleet).candidate.engine_id == expected


def test_dynamo_never_pays_out_more_credit_than_there_is_to_prefill() -> None:
    # Both have nothing to compute, so the blocks in flight decide.
    fleet = [seen("a", held=held(1000), active_blocks=2), seen("b", held=held(1000))]
    assert dynamo(REQUEST, fleet).candidate.engine_id == "b"


def test_llm_d_adds_weighted_scores() -> None:
    # a: 3 * 0.8 + 2 * 0 + 2 * 0.9 = 4.2; b: 0 + 2 * 1 + 2 * 1 = 4.0.
    fleet = [
        seen("a", waiting=4, told_tokens=800, active_blocks=100),
        seen("b", held=held(1000)),
    ]
    assert llm_d(REQUEST, fleet).candidate.engine_id == "a"
    # 3 * 0.7 + 1.8 = 3.9.
    fleet[0] = seen("a", waiting=4, told_tokens=700, active_blocks=100)
    assert llm_d(REQUEST, fleet).candidate.engine_id == "b"


def test_llm_d_scores_equal_queues_alike_and_the_precise_one_what_is_held() -> None:
    # Queues are equal: a 2 * 0.5 + 1 + 0.5 = 2.5; b 0 + 1 + 1 = 2.
    fleet = [
        seen("a", waiting=1, held=held(500), active_blocks=500),
        seen("b", waiting=1, told_tokens=1000),
    ]
    assert llm_d_precise(REQUEST, fleet).candidate.engine_id == "a"
    assert llm_d(REQUEST, fleet).candidate.engine_id == "b"


def test_the_least_ttft_is_queue_and_what_is_missing() -> None:
    # 0.6 + 0.3 s against 0 + 1 s, at 1,000 tokens/s.
    fleet = [seen("a", prefill_tokens=600, held=held(700)), seen("b")]
    assert named(least_ttft(REQUEST, fleet)) == ("a", LOCAL)
    fleet[0] = seen("a", prefill_tokens=701, held=held(700))
    assert named(least_ttft(REQUEST, fleet)) == ("b", LOCAL)


def test_what_a_busy_peer_holds_is_pulled_where_that_is_faster_than_computing() -> None:
    # b: 700 / 7,000 + 0.3 = 0.4 s; a: 0.2 + 0.3 s.
    fleet = [
        seen("a", prefill_tokens=200, held=held(700), peer_tokens_per_s=7000),
        seen("b", peer_tokens_per_s=7000),
    ]
    assert named(least_ttft_with_pull(REQUEST, fleet)) == ("b", Source(SourceKind.PEER, "a"))
    # Slower than 1,000 tokens/s: computing it, 1 s, is no slower than pulling.
    fleet = [
        seen("a", prefill_tokens=2000, held=held(700), peer_tokens_per_s=500),
        seen("b", peer_tokens_per_s=500),
    ]
    assert named(least_ttft_with_pull(REQUEST, fleet)) == ("b", LOCAL)


def test_conductor_pulls_from_a_match_that_is_longer_by_its_factor_whatever_it_costs() -> None:
    # The best match, 800, is twice what b holds: 400 / 500 + 0.2 = 1.0 s, not 0.6 s computed.
    holder = seen("a", prefill_tokens=900, held=held(800), peer_tokens_per_s=500)
    other = seen("b", held=held(400), peer_tokens_per_s=500)
    assert named(conductor(REQUEST, [holder, other])) == ("b", Source(SourceKind.PEER, "a"))
    # Below the factor it computes.
    other = seen("b", held=held(500), peer_tokens_per_s=500)
    assert named(conductor(REQUEST, [holder, other])) == ("b", LOCAL)
    # Without a network as well.
    other = seen("b", held=held(400))
    assert named(conductor(REQUEST, [holder, other])) == ("b", LOCAL)
