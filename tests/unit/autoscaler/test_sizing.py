"""Sizes are ready in time, stay for a while, and never turn back within twice the lead."""

import numpy as np
import pytest

from autoscaler.forecast.forecaster import DemandForecaster
from autoscaler.plan import Cause
from autoscaler.sizing import START_PACE, WAKE_PACE, Pace, Sizer, Sizing

STEP_S = 10.0
RATIO = 0.97


class Fleet:
    """One model whose sizes come true at once."""

    def __init__(
        self,
        lead_s: float = 60.0,
        num_replicas: int = 60,
        *,
        ratio: float = RATIO,
        pace: Pace = START_PACE,
    ) -> None:
        self.forecaster = DemandForecaster(STEP_S, level=ratio)
        self.sizer = Sizer(self.forecaster, pace)
        self.lead_s, self.num_replicas, self.now_s = lead_s, num_replicas, 0.0
        self.changes: list[tuple[float, int]] = []

    def run(self, loads: np.ndarray, backlog: float = 0.0) -> Sizing:
        for load in loads:
            self.now_s += STEP_S
            self.forecaster.observe(self.now_s, self.now_s, float(load))
            sizing = self.ask(backlog)
            if sizing.num_replicas != self.num_replicas:
                change = sizing.num_replicas - self.num_replicas
                self.changes.append((self.now_s, 1 if change > 0 else -1))
            self.num_replicas = sizing.num_replicas
        return sizing

    def ask(self, backlog: float = 0.0) -> Sizing:
        return self.sizer.size(
            self.now_s,
            lead_s=self.lead_s,
            current=self.num_replicas,
            ready=self.num_replicas,
            backlog=backlog,
        )


def _noisy(num: int, mean: float = 50.0, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).gamma(100.0, mean / 100.0, num)


def test_it_holds_what_is_there_while_nothing_is_known() -> None:
    sizing = Fleet(num_replicas=7).ask()
    assert sizing == Sizing(7, 7.0, (Cause.HOLD_BLIND,), None)


def test_an_even_load_gets_some_spare_and_few_changes() -> None:
    fleet = Fleet(num_replicas=200)
    fleet.run(_noisy(360))
    assert 55 <= fleet.num_replicas <= 75
    assert len(fleet.changes) <= 8


def test_it_asks_for_more_before_a_climb_arrives() -> None:
    fleet = Fleet(lead_s=120.0)
    fleet.run(_noisy(150))
    sizing = fleet.run(np.linspace(50, 110, 60) * _noisy(60, 1.0))
    assert sizing.num_replicas > 115
    assert fleet.changes[-1][1] == 1


def test_it_gives_back_what_a_fall_leaves_idle() -> None:
    fleet = Fleet()
    fleet.run(_noisy(150))
    fleet.run(_noisy(120, 10.0))
    assert fleet.num_replicas <= 20


def test_a_missing_second_that_costs_more_buys_more_spare() -> None:
    sizes = []
    for ratio in (0.8, 0.95, 0.995):
        fleet = Fleet(ratio=ratio)
        fleet.run(_noisy(250))
        sizes.append(fleet.num_replicas)
    assert sizes[0] < sizes[1] < sizes[2]


def test_a_longer_lead_needs_more_spare() -> None:
    walk = 50 + np.cumsum(np.random.default_rng(5).normal(0, 0.7, 500))
    wanted = []
    for lead_s in (120.0, 300.0, 900.0):
        fleet = Fleet(lead_s=lead_s)
        wanted.append(fleet.run(walk).num_wanted)
    assert wanted[0] < wanted[1] < wanted[2]


def test_a_queue_asks_for_more_than_what_comes() -> None:
    fleet = Fleet(num_replicas=62)
    fleet.run(_noisy(150))
    before = fleet.ask()
    sizing = fleet.ask(backlog=6000.0)
    assert sizing.num_wanted > before.num_wanted + 10
    assert sizing.num_replicas > fleet.num_replicas
    assert sizing.causes == (Cause.BACKLOG,)


def test_a_queue_that_is_gone_when_help_is_ready_asks_for_none() -> None:
    fleet = Fleet(num_replicas=80)
    fleet.run(_noisy(30))
    assert fleet.ask(backlog=100.0).num_wanted == fleet.ask().num_wanted


@pytest.mark.parametrize("lead_s", [10.0, 60.0, 300.0])
def test_it_does_not_shrink_within_twice_the_lead_of_growing(lead_s: float) -> None:
    fleet = Fleet(lead_s=lead_s)
    saw = 40 + 30 * (np.arange(700) % 45 < 15)
    fleet.run(saw * _noisy(700, 1.0))
    pairs = zip(fleet.changes, fleet.changes[1:], strict=False)
    assert fleet.changes
    assert not [
        after
        for before, after in pairs
        if before[1] > 0 > after[1] and after[0] - before[0] <= 2 * lead_s
    ]


def test_a_change_that_would_gain_little_is_held_and_says_so() -> None:
    fleet = Fleet()
    fleet.run(_noisy(400))
    fleet.num_replicas += 1
    sizing = fleet.ask()
    assert sizing.num_replicas == fleet.num_replicas
    assert sizing.causes == (Cause.HOLD_HYSTERESIS, Cause.FORECAST)


def test_a_load_of_nothing_needs_nobody() -> None:
    fleet = Fleet(num_replicas=5)
    fleet.run(np.zeros(200))
    assert fleet.num_replicas <= 1


def test_it_explains_itself_by_the_forecast_at_the_lead() -> None:
    fleet = Fleet(lead_s=190.0)
    record = fleet.run(_noisy(150)).forecast
    assert record is not None
    assert (record.horizon_s, record.quantile) == (190.0, RATIO)
    assert record.last_value == pytest.approx(50.0, rel=0.1)
    assert record.value > record.last_value
    assert record.coverage is not None


@pytest.mark.parametrize(("pace", "is_held"), [(WAKE_PACE, False), (START_PACE, True)])
def test_who_wakes_in_seconds_sleeps_soon_and_who_starts_stays(pace: Pace, is_held: bool) -> None:
    fleet = Fleet(lead_s=100.0, pace=pace)
    wanted = fleet.run(_noisy(200)).num_wanted
    scale = fleet.forecaster.at(100.0).scale
    fleet.num_replicas = num_more = int(wanted + 1.4 * scale)
    fleet.now_s += 3 * fleet.lead_s
    fleet.ask()
    fleet.now_s += 3 * fleet.lead_s
    assert (fleet.ask().num_replicas == num_more) == is_held


def test_a_young_forecaster_answers_a_jump_by_no_more_than_twice_its_size() -> None:
    fleet = Fleet(lead_s=120.0, num_replicas=5)
    fleet.run(_noisy(60, 3.0))
    sizes = [fleet.run(_noisy(1, 10.0, seed)).num_replicas for seed in range(60)]
    assert sizes[6] > 10
    assert max(sizes) <= 20
