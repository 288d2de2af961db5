"""Sizes come down after a load ends, by what gateways and engines really say then."""

import random

from autoscaler.config import AutoscalerConfig, CapacityConfig, StepCostConfig
from autoscaler.plan import ModelPlan
from cache_tiers.rung import Rung
from engine.messages import LoadView
from tests.unit.autoscaler.fleets import ToyFleet, make_config, make_demand, make_replica

STEPS = CapacityConfig(
    step_cost=StepCostConfig(base_s=0.01, prefill_token_s=1e-4, decode_s=2e-4, max_num_seqs=64)
)
TICK_S = 20


def run(fleet: ToyFleet, config: AutoscalerConfig, rate: float, time_s: int) -> list[ModelPlan]:
    """Requests come by chance; engines tell of steps only while something runs."""
    chance = random.Random(f"{rate}/{fleet.now_s}")
    plans = []
    for _ in range(time_s // TICK_S):
        num = sum(chance.random() < 0.5 for _ in range(round(2 * rate * TICK_S)))
        load = LoadView()
        if num:
            load = LoadView(
                num_running=2,
                full_step_tokens=2048,
                prefill_base_s=0.01,
                prefill_token_s=1e-4,
                decode_step_s=0.02,
            )
        seen = tuple(
            make_replica(key, rung, load=load if rung is Rung.SERVING else LoadView())
            for key, rung in fleet.rungs.items()
        )
        demand = make_demand(num / TICK_S, period_s=TICK_S)
        plans.append(fleet.tick(config, demand, passed_s=TICK_S, replicas=seen))
    return plans


def test_all_but_the_least_go_within_half_an_hour_after_the_last_request() -> None:
    config = make_config(capacity=STEPS, min_replicas=1, start_s=30.0)
    fleet = ToyFleet(1, start_s=30.0)
    busy = run(fleet, config, 40.0, 900)[-1]
    assert busy.num_replicas >= 5
    after = run(fleet, config, 0.0, 1800)
    assert not any(each.is_held for each in after)
    assert (after[-1].num_serving, after[-1].num_parked) == (1, 0)
    assert list(fleet.rungs.values()) == [Rung.SERVING]


def test_a_load_that_falls_to_a_quarter_takes_most_replicas_along_and_they_stay_away() -> None:
    config = make_config(start_s=30.0, max_parked=0)
    fleet = ToyFleet(1, start_s=30.0)
    most = run(fleet, config, 60.0, 900)[-1].num_replicas
    sizes = [each.num_replicas for each in run(fleet, config, 15.0, 1800)]
    assert sizes[-1] <= most / 2
    assert sizes[-1] * 10.0 >= 15.0
    last = sizes[len(sizes) // 2 :]
    assert max(last) - min(last) <= 1


def test_nothing_grows_without_a_request() -> None:
    config = make_config(start_s=30.0, min_replicas=1)
    sizes = [each.num_replicas for each in run(ToyFleet(2), config, 0.0, 1200)]
    assert max(sizes) == 2
    assert sizes[-1] == 1


def test_replicas_that_never_come_are_taken_back_after_a_load() -> None:
    config = make_config(start_s=30.0, min_replicas=1)
    fleet = ToyFleet(2, start_s=1e9)
    run(fleet, config, 60.0, 600)
    assert len(fleet.starting) > 2
    run(fleet, config, 0.0, 1800)
    assert fleet.starting == []
    assert fleet.target == 1
