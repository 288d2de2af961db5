from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autoscaler.config import AutoscalerConfig, CapacityConfig, ModelScalingConfig, ScheduleConfig
from autoscaler.observation import FleetObservation, ModelObservation, ServeObservation
from autoscaler.plan import Cause, ModelPlan
from autoscaler.policy import PlannerState, decide
from cache_tiers.rung import Rung
from tests.unit.autoscaler.fleets import NOON_S, ToyFleet, make_config, make_demand, make_replica

WAVE = (30.0, 32.0, 50.0, 31.0, 30.0, 60.0, 33.0)
"""Requests/s of one minute each."""


SLEEPY = make_config(max_replicas=10, parked_cost=0.05, late_cost=5.0)


@pytest.fixture(scope="module")
def _steady() -> ToyFleet:
    fleet = ToyFleet(6)
    fleet.run(make_config(), 40.0, 600, every_s=10)
    return fleet


@pytest.fixture
def steady(_steady: ToyFleet) -> ToyFleet:
    """After ten minutes of 40 requests/s."""
    return deepcopy(_steady)


@pytest.fixture(scope="module")
def _wavy() -> ToyFleet:
    fleet = ToyFleet(10)
    fleet.run(SLEEPY, WAVE, 840, every_s=10)
    return fleet


@pytest.fixture
def wavy(_wavy: ToyFleet) -> ToyFleet:
    """After two rounds of `WAVE`, by `SLEEPY`."""
    return deepcopy(_wavy)


def awake(plan: ModelPlan) -> set[str]:
    return {each for each, rung in plan.rungs.items() if rung is Rung.SERVING}


def test_a_steady_load_settles_at_a_size_above_it(steady: ToyFleet) -> None:
    before = steady.target
    plan = steady.run(make_config(), 40.0, 300, every_s=10)
    assert 4 <= plan.num_serving <= plan.num_replicas <= 7
    assert plan.num_replicas <= before


def test_grows_at_once_when_more_comes_and_counts_what_starts(steady: ToyFleet) -> None:
    sizes = [steady.tick(make_config(), make_demand(80.0)).num_replicas for _ in range(30)]
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 8
    assert steady.plan is not None
    assert steady.plan.models[0].next_ready_s is not None
    assert len(steady.rungs) + len(steady.starting) == sizes[-1]


def test_the_first_decisions_do_not_shrink() -> None:
    fleet = ToyFleet(20)
    plan = fleet.run(make_config(), 5.0, 250, every_s=10)
    assert (plan.num_serving, plan.num_parked) == (20, 0)
    assert plan.causes[0] is Cause.HOLD_HYSTERESIS
    assert "seen before it may change" in plan.reason
    assert fleet.run(make_config(), 5.0, 300, every_s=10).num_serving < 20


def test_state_that_was_lost_holds_sizes_and_sleepers(wavy: ToyFleet) -> None:
    before = wavy.tick(SLEEPY, make_demand(33.0))
    wavy.state = PlannerState.new(epoch=2)
    after = wavy.tick(SLEEPY, make_demand(33.0))
    assert before.num_parked > 0
    assert (after.num_serving, after.num_parked) == (before.num_serving, before.num_parked)
    assert after.rungs == before.rungs
    assert wavy.plan is not None
    assert (wavy.plan.epoch, wavy.plan.sequence) == (2, 1)


def test_what_it_has_to_have_at_once_is_not_held_back() -> None:
    assert ToyFleet(2).run(make_config(), 60.0, 30).num_serving > 5


def test_every_plan_has_the_next_number() -> None:
    fleet = ToyFleet(2)
    numbers = []
    for _ in range(5):
        fleet.tick(make_config(), make_demand(5.0))
        assert fleet.plan is not None
        numbers.append(fleet.plan.sequence)
    assert numbers == [1, 2, 3, 4, 5]


def test_a_short_gap_changes_nothing_and_a_long_one_holds(steady: ToyFleet) -> None:
    before, config = steady.target, make_config()
    short = [steady.tick(config, None) for _ in range(4)][-1]
    assert not short.is_held
    assert short.num_replicas == before
    long = steady.run(config, None, 1200, every_s=20)
    assert long.is_held
    assert long.rungs == {}
    assert long.num_replicas == before
    assert long.causes == (Cause.HOLD_BLIND,)
    assert "unknown for" in long.reason


def test_holds_when_serve_is_silent(steady: ToyFleet) -> None:
    for _ in range(12):
        plan = steady.tick(make_config(), make_demand(40.0), serve=None)
    assert plan.is_held
    assert "Serve" in plan.reason


def test_holds_when_no_replica_is_heard(steady: ToyFleet) -> None:
    silent = tuple(make_replica(each, load=None) for each in steady.rungs)
    for _ in range(7):
        plan = steady.tick(make_config(), make_demand(1.0), replicas=silent)
    assert plan.is_held
    assert "none is heard" in plan.reason


def test_holds_while_nobody_knows_what_a_replica_takes() -> None:
    plan = ToyFleet(3).run(make_config(capacity=CapacityConfig()), 40.0, 30)
    assert plan.is_held
    assert "capacity.requests_per_s" in plan.reason


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -5.0])
def test_a_rate_that_is_nonsense_holds_and_says_so(steady: ToyFleet, rate: float) -> None:
    before = steady.target
    for _ in range(8):
        plan = steady.tick(make_config(), make_demand(rate))
    assert plan.num_replicas <= before
    assert plan.is_held
    assert f"num_arrived is {rate}" in plan.reason


def test_a_spike_of_one_second_changes_no_size(steady: ToyFleet) -> None:
    before, config = steady.target, make_config()
    sizes = {steady.tick(config, make_demand(400_000.0)).num_replicas}
    sizes |= {steady.tick(config, make_demand(40.0)).num_replicas for _ in range(60)}
    assert max(sizes) <= before + 2


def test_a_clock_that_steps_back_changes_no_size(steady: ToyFleet) -> None:
    other = deepcopy(steady)
    steady.now_s -= 500.0
    stepped = steady.tick(make_config(), make_demand(40.0))
    assert "went back by 499 s" in stepped.reason
    other.tick(make_config(), make_demand(40.0))
    for _ in range(10):
        after, unstepped = (each.run(make_config(), 40.0, 10) for each in (steady, other))
        assert after.num_replicas == unstepped.num_replicas


def test_a_node_that_dies_while_its_replica_starts_asks_for_no_second_one(
    steady: ToyFleet,
) -> None:
    steady.start_s = 1e9
    first = steady.run(make_config(), 60.0, 300)
    assert first.num_replicas > 6
    assert first.next_ready_s == 60.0
    assert steady.run(make_config(), 60.0, 600, every_s=20).num_replicas <= first.num_replicas


def test_pending_replicas_do_not_block_the_way_down(steady: ToyFleet) -> None:
    steady.start_s = 1e9
    steady.run(make_config(), 60.0, 60)
    assert steady.starting
    steady.run(make_config(), 10.0, 1200, every_s=10)
    assert steady.starting == []


def test_bounds_hold_and_the_tighter_ones_of_serve_and_the_configuration_count() -> None:
    config = make_config(min_replicas=3, max_replicas=8)
    assert ToyFleet(3).run(config, 500.0, 60).num_replicas == 8
    plan = ToyFleet(3, most=6).run(config, 500.0, 60)
    assert (plan.num_replicas, plan.causes[0]) == (6, Cause.MAXIMUM)
    quiet = ToyFleet(8).run(config, 0.5, 900, every_s=10)
    assert (quiet.num_serving, quiet.causes[0]) == (3, Cause.MINIMUM)


def test_a_minimum_above_what_serve_allows_gives_way_and_says_so() -> None:
    plan = ToyFleet(2, most=4).run(make_config(min_replicas=9), 1.0, 3)
    assert plan.num_replicas == 4
    assert "9 are asked for and 4 allowed" in plan.reason


def test_an_operator_has_the_last_word_even_when_nothing_is_known() -> None:
    plan = ToyFleet(4).run(make_config(num_replicas=7, min_replicas=9), None, 30)
    assert (plan.num_serving, plan.num_parked, plan.is_held) == (7, 0, False)
    assert plan.causes[0] is Cause.OVERRIDE


def test_beside_a_size_that_an_operator_has_set_no_nodes_are_kept(wavy: ToyFleet) -> None:
    before = wavy.tick(make_config(max_parked=0), make_demand(33.0))
    none = wavy.tick(make_config(max_parked=0, num_replicas=0), make_demand(0.0))
    two = wavy.tick(make_config(max_parked=0, num_replicas=2), make_demand(33.0))
    assert before.num_nodes > before.num_replicas
    assert none.num_staged > 0
    assert (none.num_nodes, two.num_nodes) == (0, 2)


def test_a_schedule_is_ready_when_it_begins(steady: ToyFleet) -> None:
    begin = datetime.fromtimestamp(steady.local_s + 100, UTC).time().replace(microsecond=0)
    schedule = ScheduleConfig(min_replicas=12, begin=begin, end=begin.replace(hour=begin.hour + 1))
    config = make_config(schedules=(schedule,))
    assert steady.run(config, 40.0, 35).num_replicas < 12
    plan = steady.run(config, 40.0, 10)
    assert (plan.num_serving, plan.causes[0]) == (12, Cause.SCHEDULE)
    steady.run(config, 40.0, 60)
    assert len(steady.rungs) == 12
    assert steady.plan is not None
    assert steady.plan.models[0].causes[0] is Cause.SCHEDULE


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    config = replace_config(make_config(), dry_run=True)
    fleet = ToyFleet(20)
    plan = fleet.run(config, 20.0, 600, every_s=10)
    assert plan.is_held
    assert plan.num_replicas < 20
    assert plan.rungs == {}
    assert fleet.target == 20
    assert fleet.plan is not None
    assert fleet.plan.is_dry_run
    assert fleet.plan.num_devices == 20


def test_the_way_from_asleep_to_serving_is_taken_before_a_start(wavy: ToyFleet) -> None:
    before = wavy.tick(SLEEPY, make_demand(33.0))
    woken = wavy.run(SLEEPY, 75.0, 25)
    assert before.num_parked > 0
    assert woken.num_serving > before.num_serving
    assert len(awake(woken)) == woken.num_serving


def test_nobody_sleeps_where_it_is_forbidden() -> None:
    fleet = ToyFleet(10)
    plan = fleet.run(make_config(max_parked=0), 45.0, 400)
    assert plan.num_parked == 0
    assert set(plan.rungs.values()) == {Rung.SERVING}


def test_a_queue_that_is_too_long_wakes_all_that_are_there(wavy: ToyFleet) -> None:
    plan = wavy.tick(SLEEPY, make_demand(33.0, num_waiting=200.0, oldest_wait_s=4.0))
    assert plan.num_serving == len(wavy.rungs)
    assert wavy.run(SLEEPY, 33.0, 50).num_parked == 0


def idle_fleet(config: AutoscalerConfig) -> ToyFleet:
    fleet = ToyFleet(2)
    fleet.run(config, 0.0, 680, every_s=20)
    return fleet


def test_without_requests_one_serves_if_the_target_needs_it() -> None:
    config = make_config(min_replicas=0)
    plan = idle_fleet(config).tick(config, make_demand(0.0))
    assert (plan.num_serving, plan.num_parked) == (1, 0)


def test_without_requests_one_sleeps_if_waking_meets_the_target_and_wakes_at_once() -> None:
    config = make_config(min_replicas=0, ttft_target_s=8.0)
    fleet = idle_fleet(config)
    plan = fleet.tick(config, make_demand(0.0))
    assert (plan.num_serving, plan.num_parked) == (0, 1)
    woken = fleet.tick(config, make_demand(1.0, num_waiting=1.0))
    assert woken.num_serving >= 1
    assert awake(woken)


def test_without_requests_nothing_is_kept_if_starting_meets_the_target() -> None:
    config = make_config(min_replicas=0, ttft_target_s=300.0)
    fleet = idle_fleet(config)
    assert fleet.tick(config, make_demand(0.0)).num_replicas == 0
    assert fleet.tick(config, make_demand(1.0, num_waiting=1.0)).num_serving >= 1


@pytest.mark.parametrize(("ttft_target_s", "num_nodes"), [(300.0, 0), (120.0, 1)])
def test_without_requests_a_node_is_kept_only_if_the_target_needs_it(
    ttft_target_s: float, num_nodes: int
) -> None:
    config = make_config(min_replicas=0, max_parked=0, ttft_target_s=ttft_target_s)
    fleet = ToyFleet(2)
    fleet.run(config, (10.0, 20.0, 30.0), 1800, every_s=10)
    plan = fleet.run(config, 0.0, 2400, every_s=20)
    assert (plan.num_replicas, plan.num_staged, plan.num_nodes) == (0, 1, num_nodes)


def replace_config(config: AutoscalerConfig, **changes: object) -> AutoscalerConfig:
    return AutoscalerConfig.model_validate(dict(config) | changes)


def two_models(budget: int | None, *, other: int = 4) -> list[ModelPlan]:
    config = AutoscalerConfig(
        models=tuple(
            ModelScalingConfig(
                name=name,
                devices_per_replica=devices,
                max_parked=0,
                min_replicas=2,
                capacity=CapacityConfig(requests_per_s=10.0),
            )
            for name, devices in (("m", 1), ("n", 2))
        ),
        device_budget=budget,
    )
    fleet = ToyFleet(4)
    for second in range(30):
        one = fleet.observe(make_demand(200.0)).models[0]
        there = tuple(make_replica(f"n{at}") for at in range(other))
        two = ModelObservation(
            "n", make_demand(200.0), there, ServeObservation(other, other, 0, 99)
        )
        observation = FleetObservation(float(second), NOON_S + second, (one, two))
        plan = decide(observation, fleet.state, config).plan
    assert plan.num_devices == sum(
        each.num_replicas * devices for each, devices in zip(plan.models, (1, 2), strict=True)
    )
    return list(plan.models)


def test_models_share_the_budget() -> None:
    free = two_models(None)
    shared = two_models(30)
    assert sum(each.num_replicas * n for each, n in zip(free, (1, 2), strict=True)) > 30
    assert shared[0].num_replicas + 2 * shared[1].num_replicas in (29, 30)
    assert all(each.num_serving > 2 for each in shared)
    assert shared[1].causes[0] is Cause.BUDGET


def test_a_budget_of_zero_holds_all_sizes() -> None:
    assert [each.num_replicas for each in two_models(0)] == [4, 4]


def test_a_model_that_is_not_listed_keeps_its_size_and_its_accelerators() -> None:
    fleet = ToyFleet(4)
    config = replace_config(make_config(max_parked=0), device_budget=10)
    other = ModelObservation("other", make_demand(5.0), serve=ServeObservation(4, 4, 0, 9))
    for second in range(30):
        observation = fleet.observe(make_demand(200.0))
        observation = replace(observation, now_s=float(second), models=(*observation.models, other))
        plan = decide(observation, fleet.state, config).plan
    assert [(each.model, each.num_replicas) for each in plan.models] == [("m", 6)]


def test_a_model_that_nobody_knows_is_held_and_said() -> None:
    observation = FleetObservation(1.0, NOON_S, ())
    plan = decide(observation, PlannerState.new(1), make_config()).plan.models[0]
    assert plan.is_held
    assert "no gateway knows this model" in plan.reason


def test_a_model_that_is_no_longer_listed_is_forgotten() -> None:
    fleet = ToyFleet(4)
    fleet.run(make_config(), 9.0, 5)
    plan = decide(fleet.observe(make_demand(9.0)), fleet.state, AutoscalerConfig()).plan
    assert plan.models == ()
    assert fleet.state.planners == {}


def test_lower_rungs_hold_what_would_rarely_be_needed(wavy: ToyFleet) -> None:
    config = make_config(late_cost=5.0, parked_cost=0.9, staged_cost=0.05, on_disk_cost=0.001)
    plan = wavy.run(config, WAVE, 120)
    assert plan.num_staged + plan.num_on_disk > 0


def test_what_starts_took_is_told_and_taken_over_from_the_planner_before(steady: ToyFleet) -> None:
    steady.start_s = 25.0
    before = steady.run(make_config(start_s=100.0), 90.0, 120)
    assert min(before.leads[0].times_s) == 25.0
    steady.state = PlannerState.new(epoch=2, leads={"m": before.leads})
    after = steady.tick(make_config(start_s=100.0), make_demand(90.0))
    assert after.leads == before.leads


def test_weights_in_memory_make_the_lead_short_for_as_many_as_have_them(
    steady: ToyFleet,
) -> None:
    config = make_config(start_s=300.0, on_disk_start_s=40.0, staged_start_s=5.0, max_parked=0)
    horizons_s = {}
    for num_staged, num_on_disk in ((None, None), (0, 0), (0, 30), (30, 0)):
        fleet = deepcopy(steady)
        plan = fleet.tick(
            config, make_demand(40.0), num_nodes_staged=num_staged, num_nodes_on_disk=num_on_disk
        )
        (forecast,) = plan.forecasts
        horizons_s[num_staged, num_on_disk] = (forecast.horizon_s, plan.start_rung)
    assert horizons_s == {
        (None, None): (300.0, Rung.COLD),
        (0, 0): (300.0, Rung.COLD),
        (0, 30): (100.0, Rung.ON_DISK),
        (30, 0): (100.0, Rung.STAGED),
    }


def test_more_than_are_staged_are_planned_at_the_lead_of_those_that_are_not(
    steady: ToyFleet,
) -> None:
    config = make_config(start_s=300.0, staged_start_s=5.0, max_parked=0)
    for _ in range(30):
        before = steady.target
        plan = steady.tick(config, make_demand(120.0), num_nodes_staged=1)
        if plan.num_replicas > before:
            break
    assert plan.num_replicas > before + 1
    assert plan.forecasts[0].horizon_s == 300.0
    assert plan.start_rung is Rung.COLD


def test_the_next_one_is_expected_by_where_it_begins(steady: ToyFleet) -> None:
    config = make_config(start_s=300.0, staged_start_s=5.0, max_parked=0)
    for _ in range(30):
        plan = steady.tick(config, make_demand(70.0), num_nodes_staged=9)
        if plan.next_ready_s is not None:
            break
    assert plan.next_ready_s == 5.0
    assert {each.rung: each.lead_s for each in plan.leads}[Rung.ON_DISK] == 300.0


def test_nodes_are_asked_for_ahead_but_not_while_little_is_known() -> None:
    config = make_config(max_parked=0, staged_cost=1.0, on_disk_cost=1.0)
    fleet = ToyFleet(4)
    early = fleet.run(config, 20.0, 100, every_s=10)
    assert early.num_nodes == early.num_replicas + early.num_staged
    climbing = tuple(20.0 + 3.0 * minute for minute in range(16))
    plan = fleet.run(config, climbing, 960, every_s=10)
    assert plan.num_nodes > plan.num_replicas + plan.num_staged
    assert "asked for ahead" in plan.reason
    assert plan.num_nodes <= 100


def test_no_nodes_are_asked_for_beyond_what_is_allowed_or_for_who_is_held(wavy: ToyFleet) -> None:
    bounded = wavy.tick(make_config(max_replicas=10), make_demand(90.0))
    assert bounded.num_nodes <= 10
    before = wavy.target
    held = wavy.tick(make_config(dry_run=True), make_demand(900.0))
    assert held.num_nodes == before


def test_what_nodes_took_is_told_and_counts(steady: ToyFleet) -> None:
    observation = replace(steady.observe(make_demand(40.0)), node_times_s=(90.0,) * 5)
    plan = decide(observation, steady.state, make_config()).plan
    assert (plan.models[0].node_lead_s, plan.node_times_s) == (90.0, (90.0,) * 5)
    wrong = replace(observation, node_times_s=(float("nan"),))
    assert decide(wrong, steady.state, make_config()).plan.models[0].node_lead_s == 180.0


def test_nodes_that_fail_are_said(steady: ToyFleet) -> None:
    plan = steady.tick(make_config(), make_demand(40.0), num_nodes_failed=2)
    assert "2 nodes cannot hold the weights" in plan.reason


def test_weights_that_replicas_do_not_find_are_not_counted_on(steady: ToyFleet) -> None:
    config = make_config(start_s=300.0, staged_start_s=5.0, max_parked=0)
    steady.start_s = 20.0
    # Nodes have the weights in memory, and yet whoever starts tells that it began from nothing.
    for rate in (60.0, 90.0, 140.0):
        for _ in range(30):
            plan = steady.tick(config, make_demand(rate), passed_s=5.0, num_nodes_staged=50)
    assert plan.start_rung is Rung.COLD
    assert "begin on colder nodes" in plan.reason


def test_nodes_stay_asked_for_while_demand_is_unknown() -> None:
    config = make_config(max_parked=0)
    fleet = ToyFleet(4)
    climbing = tuple(20.0 + 3.0 * minute for minute in range(16))
    before = fleet.run(config, climbing, 960, every_s=10)
    blind = fleet.run(config, None, 60, every_s=10)
    assert blind.is_held
    assert before.num_nodes > before.num_replicas
    assert blind.num_nodes == before.num_nodes


def test_a_young_planner_asks_for_no_nodes_beyond_those_that_are_there() -> None:
    config = make_config(max_parked=0)
    fleet = ToyFleet(4)
    for _ in range(20):
        plan = fleet.tick(config, make_demand(36.0), passed_s=5.0, num_nodes=5)
    assert plan.num_replicas + plan.num_staged > 5
    assert plan.num_nodes == 5
