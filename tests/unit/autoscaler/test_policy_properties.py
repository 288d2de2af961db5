"""Whatever is observed, a plan comes out that could be carried out."""

import math
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.config import AutoscalerConfig, CapacityConfig, ModelScalingConfig, StepCostConfig
from autoscaler.observation import (
    Demand,
    FleetObservation,
    ModelObservation,
    ReplicaObservation,
    ServeObservation,
    StartingReplica,
)
from autoscaler.plan import Plan
from autoscaler.policy import PlannerState, decide
from cache_tiers.rung import Rung
from engine.messages import LoadView

FIGURES = st.one_of(
    st.floats(0, 1e4), st.floats(), st.sampled_from([0.0, 1.0, 1e9, 1e18, math.nan, -1.0])
)
COUNTS = st.one_of(st.integers(0, 12), st.integers(-3, 10**20))
LOADS = st.builds(
    LoadView,
    num_running=COUNTS,
    num_waiting=COUNTS,
    num_blocks=COUNTS,
    num_free_blocks=COUNTS,
    mean_answer_s=FIGURES,
    prefill_base_s=FIGURES,
    prefill_token_s=FIGURES,
    prefill_attended_s=FIGURES,
    decode_step_s=FIGURES,
    full_step_tokens=COUNTS,
)
REPLICAS = st.builds(
    ReplicaObservation,
    engine_id=st.sampled_from("abcdef"),
    rung=st.sampled_from(Rung),
    node_id=st.sampled_from(["", "x"]),
    is_moving=st.booleans(),
    is_draining=st.booleans(),
    is_seeded=st.booleans(),
    load=st.none() | LOADS,
    wake_s=FIGURES,
    sleep_s=FIGURES,
    max_num_seqs=st.integers(-1, 512),
)
DEMANDS = st.builds(
    Demand,
    *[FIGURES] * 7,
    num_refused=FIGURES,
    num_waiting=FIGURES,
    num_waiting_tokens=FIGURES,
    oldest_wait_s=FIGURES,
    num_ttft_late=FIGURES,
    num_tpot_late=FIGURES,
    prompt_len_p95=st.none() | FIGURES,
    answer_len_p95=st.none() | FIGURES,
)
MODELS = st.builds(
    ModelObservation,
    model=st.sampled_from(["m", "n", "unlisted"]),
    demand=st.none() | DEMANDS,
    replicas=st.lists(REPLICAS, max_size=6).map(tuple),
    serve=st.none() | st.builds(ServeObservation, COUNTS, COUNTS, COUNTS, COUNTS),
    starting=st.none()
    | st.lists(st.builds(StartingReplica, FIGURES, st.sampled_from(Rung)), max_size=4).map(tuple),
    num_nodes_staged=st.none() | COUNTS,
    num_nodes_on_disk=st.none() | COUNTS,
    num_nodes=st.none() | COUNTS,
    num_nodes_failed=st.none() | COUNTS,
)
OBSERVATIONS = st.lists(
    st.builds(
        FleetObservation,
        now_s=st.one_of(st.floats(0, 1e4), st.floats()),
        local_s=st.one_of(st.floats(1.7e9, 1.8e9), st.floats()),
        models=st.lists(MODELS, max_size=3).map(tuple),
        node_times_s=st.lists(FIGURES, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)
STEPS = StepCostConfig(base_s=0.015, prefill_token_s=2e-5, decode_s=1e-4)
CONFIGS = st.builds(
    AutoscalerConfig,
    models=st.tuples(
        st.builds(
            ModelScalingConfig,
            name=st.just("m"),
            min_replicas=st.none() | st.integers(0, 3),
            max_replicas=st.none() | st.integers(3, 9),
            max_parked=st.none() | st.integers(0, 2),
            num_replicas=st.none() | st.integers(0, 12),
            ttft_target_s=st.sampled_from([0.1, 0.7, 60.0]),
            devices_per_replica=st.integers(0, 8),
        ),
        st.builds(
            ModelScalingConfig,
            name=st.just("n"),
            parked_cost=st.sampled_from([0.0, 0.3, 1.0]),
            capacity=st.sampled_from(
                [CapacityConfig(requests_per_s=2.0), CapacityConfig(step_cost=STEPS)]
            ),
        ),
    ),
    device_budget=st.none() | st.integers(0, 50),
    devices_per_node=st.none() | st.integers(8, 9),
    timezone=st.sampled_from(["UTC", "Europe/Berlin"]),
    history_h=st.just(0.05),
    dry_run=st.booleans(),
)


def plans_of(observations: Sequence[FleetObservation], config: AutoscalerConfig) -> list[Plan]:
    state = PlannerState.new(epoch=3)
    plans = []
    for observation in observations:
        decision = decide(observation, state, config)
        plans.append(decision.plan)
        state = decision.state
    return plans


@settings(max_examples=25, deadline=None)
@given(OBSERVATIONS, CONFIGS)
def test_every_observation_has_a_plan_that_can_be_carried_out(
    observations: list[FleetObservation], config: AutoscalerConfig
) -> None:
    plans = plans_of(observations, config)
    assert [each.sequence for each in plans] == list(range(1, len(plans) + 1))
    for observation, plan in zip(observations, plans, strict=True):
        msgspec.msgpack.encode(plan)
        seen = {each.model: {r.engine_id for r in each.replicas} for each in observation.models}
        assert [each.model for each in plan.models] == [each.name for each in config.models]
        for model, settings_ in zip(plan.models, config.models, strict=True):
            assert model.num_serving >= 0
            assert model.num_parked >= 0
            assert model.num_staged >= 0
            assert model.num_on_disk >= 0
            assert model.is_held or model.num_nodes >= model.num_replicas
            assert all(0 < each.lead_s <= 86400 for each in model.leads)
            assert model.next_ready_s is None or 0 <= model.next_ready_s <= 86400
            assert math.isfinite(model.num_wanted)
            assert model.causes
            assert model.reason
            assert "\n" not in model.reason
            assert set(model.rungs) <= seen.get(model.model, set())
            serving = sum(rung is Rung.SERVING for rung in model.rungs.values())
            assert serving <= model.num_serving
            if model.is_held:
                assert model.rungs == {}
            elif settings_.max_replicas is not None:
                assert model.num_replicas <= settings_.max_replicas


@settings(max_examples=5, deadline=None)
@given(OBSERVATIONS, CONFIGS)
def test_the_same_observations_have_the_same_plans(
    observations: list[FleetObservation], config: AutoscalerConfig
) -> None:
    first, second = plans_of(observations, config), plans_of(observations, config)
    encode = msgspec.msgpack.Encoder(order="deterministic").encode
    assert [encode(each) for each in first] == [encode(each) for each in second]
