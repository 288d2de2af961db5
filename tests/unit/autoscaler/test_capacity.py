from dataclasses import replace

import pytest

from autoscaler.capacity import CapacityModel
from autoscaler.config import CapacityConfig, ModelScalingConfig, StepCostConfig
from autoscaler.observation import Demand, ReplicaObservation
from autoscaler.window import Totals
from engine.messages import LoadView
from tests.unit.autoscaler.fleets import make_demand, make_replica

FITTED = LoadView(
    num_running=20,
    num_blocks=10_000,
    num_free_blocks=8_000,
    prefill_base_s=0.015,
    prefill_token_s=2e-5,
    decode_step_s=0.017,
    full_step_tokens=2048,
)
TOTALS = Totals(
    num_known_s=100,
    num_arrived=500,
    num_prompt_tokens=1_000_000,
    num_uncached_tokens=500_000,
    num_generated_tokens=150_000,
    num_begun=500,
    num_ended=500,
)


def engine(name: str, load: LoadView = FITTED, max_num_seqs: int = 256) -> ReplicaObservation:
    return make_replica(name, load=load, max_num_seqs=max_num_seqs)


def model(
    *replicas: ReplicaObservation,
    totals: Totals = TOTALS,
    demand: Demand | None = None,
    **capacity: object,
) -> CapacityModel:
    config = ModelScalingConfig(name="m", capacity=CapacityConfig.model_validate(capacity))
    made = CapacityModel()
    made.update(0.0, 0.0, config, replicas, totals, demand)
    return made


def test_what_nobody_told_is_unknown_unless_nothing_comes() -> None:
    unknown = model()
    assert unknown.load_of(5.0) is None
    assert unknown.load_of(0.0) == 0.0
    assert unknown.rate_of(3) is None
    assert unknown.backlog_replica_s(10.0, 0.0, 3) == 0.0


def test_a_rate_that_was_told_is_the_capacity() -> None:
    told = model(requests_per_s=4.0)
    assert told.load_of(10.0) == 2.5
    assert told.rate_of(7) == 4.0


def test_a_profile_and_engines_that_report_the_same_agree() -> None:
    context = 2000 + 300 / 2
    profile = StepCostConfig(
        base_s=0.015,
        prefill_token_s=2e-5,
        decode_s=5e-5,
        context_token_s=5e-5 / context,
        step_tokens=2048,
        max_num_seqs=100,
    )
    told, reported = model(totals=TOTALS, step_cost=profile), model(engine("a"), engine("b"))
    told.update(
        20.0,
        20.0,
        ModelScalingConfig(name="m", capacity=CapacityConfig(step_cost=profile)),
        (),
        TOTALS,
        None,
    )
    for rate in (1.0, 30.0, 500.0):
        assert told.load_of(rate) == pytest.approx(reported.load_of(rate), rel=0.01)


def test_load_and_rate_are_inverse() -> None:
    known = model(engine("a"))
    for num in (1, 2, 5, 11, 100, 3000):
        rate = known.rate_of(num)
        assert rate is not None
        assert known.load_of(num * rate) == pytest.approx(num)


def test_small_fleets_need_more_replicas_per_request() -> None:
    known = model(engine("a"))
    rate = known.rate_of(1)
    assert rate is not None
    load = known.load_of(100 * rate)
    assert load is not None
    assert load < 95


def test_kv_that_running_requests_take_bounds_how_many_run() -> None:
    narrow = LoadView(
        num_running=20,
        num_blocks=10_000,
        num_free_blocks=1_000,
        prefill_base_s=0.015,
        prefill_token_s=2e-5,
        decode_step_s=0.017,
        full_step_tokens=2048,
    )
    wide, full = model(engine("a")), model(engine("a", narrow))
    assert full.costs is not None
    assert full.costs.most_running == pytest.approx(20 / 0.9)
    assert (full.rate_of(4) or 0) < (wide.rate_of(4) or 0)


def test_the_middle_engine_counts() -> None:
    broken = LoadView(
        num_running=20,
        prefill_base_s=50.0,
        prefill_token_s=1.0,
        decode_step_s=60.0,
        full_step_tokens=1,
    )
    costs = model(engine("a"), engine("b", broken), engine("c")).costs
    assert costs is not None
    assert (costs.base_s, costs.prefill_token_s) == (0.015, 2e-5)


def test_engines_without_fitted_steps_are_judged_by_their_slots() -> None:
    load = LoadView(num_running=3, mean_answer_s=10.0)
    by_slots = model(engine("a", load, max_num_seqs=100))
    assert by_slots.rate_of(5) == pytest.approx(7.0)


def test_prefix_hits_make_replicas_larger() -> None:
    cached = replace(TOTALS, num_uncached_tokens=50_000)
    assert (model(engine("a"), totals=cached).rate_of(4) or 0) > 1.2 * (
        model(engine("a")).rate_of(4) or 0
    )


def test_a_handful_of_requests_makes_no_mix() -> None:
    few = Totals(100, 3, 0, 9_000_000, 9_000_000, 3, 3, 3)
    assert model(engine("a"), totals=few).mix == CapacityModel().mix


def test_the_tail_of_prompts_is_that_of_the_last_minutes() -> None:
    demand = replace(make_demand(5.0), prompt_len_p95=9_000.0)
    assert model(engine("a"), demand=demand).mix.prompt_tail == pytest.approx(4.5)


def test_what_waits_takes_as_long_as_replicas_need_for_it() -> None:
    known = model(engine("a"))
    rate = known.rate_of(4)
    assert rate is not None
    usual = known.backlog_replica_s(50.0, 0.0, 4)
    assert usual == pytest.approx(50 / rate)
    assert known.backlog_replica_s(50.0, 50 * 2_000.0, 4) == pytest.approx(usual)
    assert known.backlog_replica_s(50.0, 50 * 8_000.0, 4) > 1.5 * usual
