"""Whether a simulated fleet bears what the capacity model says it does."""

import numpy as np
import pytest

from autoscaler.throughput import RequestMix, StepCosts, Targets, max_rate
from engine.performance_profile import StepCost
from simulator.scaling.day_fleet import DayFleet, DayOutcome, DaySpec
from simulator.scaling.day_workload import ChatShape, DayWorkload, make_day
from simulator.scaling.fleet_scaler import FleetScaler
from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

COST = StepCost(base_s=0.009, per_prefill_token_s=3.6e-5, per_context_token_s=2.2e-8)
SPEC = DaySpec(COST, num_kv_tokens=1_000_000)
TARGETS = Targets(SPEC.ttft_target_s, SPEC.tpot_target_s)
LENGTH_S, SETTLED_S = 240.0, 60.0
NUM = 3


class Same:
    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas

    def size(self, view: ScalingView) -> Wanted:
        return Wanted(self._num_replicas)


def simulate(shape: ChatShape, rate: float) -> tuple[DayWorkload, DayOutcome]:
    workload = make_day(shape, np.full(round(LENGTH_S / 10), rate * NUM), 10.0)
    scaler = FleetScaler(Same(NUM), ScalingSetting(1.0, 0.0, tick_s=1.0))
    return workload, DayFleet(workload, SPEC, scaler, NUM).run()


def promise(shape: ChatShape) -> float:
    workload, outcome = simulate(shape, 1.0)
    prompt_len, answer_len = float(workload.prompts.mean()), float(workload.answers.mean())
    decode_s = COST.per_context_token_s * (prompt_len + answer_len / 2)
    costs = StepCosts(COST.base_s, COST.per_prefill_token_s, 0.0, decode_s, 2048.0, 256.0)
    tail = float(np.percentile(workload.prompts, 95)) / prompt_len
    uncached_len = prompt_len * (1 - outcome.hit_rate)
    return max_rate(costs, RequestMix(prompt_len, uncached_len, answer_len, tail), TARGETS, NUM)


def late_share(shape: ChatShape, rate: float) -> float:
    workload, outcome = simulate(shape, rate)
    is_late = (outcome.ttft_s > TARGETS.ttft_s) | (outcome.tpot_s > TARGETS.tpot_s)
    return float(is_late[workload.arrivals_s > SETTLED_S].mean())


@pytest.mark.parametrize(
    "shape",
    [
        ChatShape(num_turns=1, num_system_tokens=1024, user_tokens=1000, user_sigma=1.0),
        ChatShape(
            num_turns=1, num_system_tokens=512, user_tokens=800, user_sigma=1.0, answer_tokens=150
        ),
    ],
    ids=["chat", "short answers"],
)
def test_nearly_all_is_in_time_below_the_promised_rate_and_not_beyond(shape: ChatShape) -> None:
    rate = promise(shape)
    assert late_share(shape, 0.9 * rate) < 0.01
    assert late_share(shape, 1.2 * rate) > 0.02
