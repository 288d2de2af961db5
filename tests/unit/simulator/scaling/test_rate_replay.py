"""Replays of rates agree with a plain loop of their rules, and the ladder costs what it should."""

import math
from collections import deque

import numpy as np
import pytest

from simulator.errors import TraceError
from simulator.scaling.rate_replay import oracle_sizes, replay, warm_up_ticks
from simulator.scaling.rate_trace import Counts, RateTrace
from simulator.scaling.registry import create_scaling_policy
from simulator.scaling.view import ScalingPolicy, ScalingSetting, ScalingView, Wanted

TICK_S = 10


class Says:
    """A policy that says what it is told to, then the last of it."""

    def __init__(self, *wanted: Wanted) -> None:
        self._wanted = list(wanted)

    def size(self, view: ScalingView) -> Wanted:
        return self._wanted.pop(0) if len(self._wanted) > 1 else self._wanted[0]


def plain_replay(
    counts: Counts, policy: ScalingPolicy, rps: float, lead_s: float, warm_up: int
) -> tuple[float, float, int, int]:
    """Late fraction, cost over the oracle, changes and flaps, by the rules as they are written."""
    lead = math.ceil(lead_s / TICK_S)
    starting: deque[int] = deque()
    ready, queue = max(1, math.ceil(counts[0] / TICK_S / rps)), 0.0
    late = num = cost = changes = flaps = 0
    last_direction, last_tick = 0, -(10**9)
    for tick, arrived in enumerate(counts.tolist()):
        while starting and starting[0] <= tick:
            starting.popleft()
            ready += 1
        waiting = queue + arrived
        queue = waiting - min(waiting, ready * rps * TICK_S)
        if tick >= warm_up:
            late += min(arrived, queue)
            num += arrived
            cost += ready + len(starting)
        ongoing = (arrived + queue) / TICK_S / rps
        view = ScalingView(tick * TICK_S, arrived, queue, ongoing, ready, len(starting))
        change = max(1, policy.size(view).num_serving) - ready - len(starting)
        if change:
            direction = 1 if change > 0 else -1
            if tick >= warm_up:
                changes += 1
                flaps += direction != last_direction and tick - last_tick <= 2 * lead
            last_direction, last_tick = direction, tick
        starting += [tick + lead] * max(0, change)
        for _ in range(-change):
            if starting:
                starting.pop()
            else:
                ready = max(1, ready - 1)
    oracle = np.maximum(1, np.ceil(counts[warm_up:] / TICK_S / rps)).sum()
    return late / num, cost / oracle, changes, flaps


def bumpy_day() -> Counts:
    steps = np.arange(288)
    rates = 60 + 50 * np.sin(2 * np.pi * steps / 144) + 30 * (steps % 17 == 0)
    return RateTrace("bumpy", rates, 4 * rates).counts(float(TICK_S))


@pytest.mark.parametrize("lead_s", [0.0, 35.0, 120.0])
@pytest.mark.parametrize("name", ["last_value", "max_hour", "ray_default", "knative", "keda"])
def test_a_replay_agrees_with_the_plain_loop(name: str, lead_s: float) -> None:
    counts = bumpy_day()[:2400]
    setting = ScalingSetting(4.0, lead_s)
    figures, _ = replay(counts, create_scaling_policy(name, setting), setting)
    warm_up = warm_up_ticks(len(counts), setting.tick_s)
    late, cost, changes, flaps = plain_replay(
        counts, create_scaling_policy(name, setting), 4.0, lead_s, warm_up
    )
    days = (len(counts) - warm_up) / 8640
    assert figures.late_fraction == pytest.approx(late)
    assert figures.cost_over_oracle == pytest.approx(cost)
    assert figures.changes_per_day * days == pytest.approx(changes)
    assert figures.flaps_per_day * days == pytest.approx(flaps)


def test_a_start_takes_the_lead_and_is_paid_meanwhile() -> None:
    counts = np.full(10, 40)
    figures, sizes = replay(counts, Says(Wanted(3)), ScalingSetting(4.0, 30.0), num_warm_up=0)
    assert sizes.serving == [1, *[3] * 9]
    assert figures.replica_hours == pytest.approx(28 * TICK_S / 3600)
    assert figures.late_fraction == 0


def test_who_sleeps_wakes_sooner_and_costs_less() -> None:
    counts = np.array([40, 40, 40, 40, 40, 40, 80, 80])
    policy = Says(Wanted(2), Wanted(2), Wanted(2), Wanted(1, 1), Wanted(1, 1), Wanted(2))
    setting = ScalingSetting(4.0, 30.0, wake_s=0.0, parked_cost=0.25)
    figures, sizes = replay(counts, policy, setting, num_warm_up=0)
    assert sizes.serving == [1, 2, 2, 2, 1, 1, 2, 2]
    assert figures.late_fraction == 0
    assert figures.mean_parked == pytest.approx(2 / 8)
    assert figures.replica_hours == pytest.approx((13 + 0.25 * 2) * TICK_S / 3600)


def test_a_reversal_within_twice_the_lead_is_a_flap() -> None:
    counts = np.full(20, 40)
    quick = Says(Wanted(2), Wanted(1), *[Wanted(1)] * 9, Wanted(2))
    figures, _ = replay(counts, quick, ScalingSetting(4.0, 30.0), num_warm_up=0)
    days = 20 * TICK_S / 86_400
    assert figures.changes_per_day * days == pytest.approx(3)
    assert figures.flaps_per_day * days == pytest.approx(1)


def test_no_policy_exceeds_the_bound() -> None:
    setting = ScalingSetting(4.0, 0.0, max_replicas=5)
    _, sizes = replay(np.full(10, 40), Says(Wanted(9, 3)), setting, num_warm_up=0)
    assert max(sizes.serving) == 5


def test_the_oracle_has_just_enough() -> None:
    assert oracle_sizes(np.array([0, 1, 40, 41]), ScalingSetting(4.0, 0.0)).tolist() == [1, 1, 1, 2]


def test_all_warm_up_is_no_replay() -> None:
    with pytest.raises(TraceError, match="nothing is left to score"):
        replay(np.full(4, 1), Says(Wanted(1)), ScalingSetting(4.0, 0.0), num_warm_up=4)


def test_production_code_keeps_up_with_a_ramp() -> None:
    counts = bumpy_day()[:600]
    setting = ScalingSetting(16.0, 30.0, max_replicas=30)
    ours, _ = replay(counts, create_scaling_policy("headwater", setting), setting)
    assert ours.late_fraction < 0.02
    assert ours.cost_over_oracle < 1.6
