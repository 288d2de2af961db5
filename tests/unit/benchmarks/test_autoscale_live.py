"""The autoscaling benchmark without its fleets: what is asked, who is started, what is reckoned."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from autoscaler.config import AutoscalerConfig
from benchmarks.autoscale_live_file import PARKED_COST, contestant_file
from benchmarks.autoscale_live_fleet import ACCEPTING, REPLICAS, count_engines
from benchmarks.autoscale_live_load import RateSchedule, Span, send_at
from benchmarks.autoscale_live_run import Request, Run, Sample
from benchmarks.autoscale_live_scenarios import (
    COLD,
    LADDER,
    OURS,
    PACED,
    SCENARIOS,
    STAGED,
    STATIC,
    TUNED,
    Scenario,
    contestants,
)
from benchmarks.autoscale_live_summary import (
    GOAL_TIMES_FEWER,
    GOAL_TIMES_SHORTER,
    TIMELINE_COLUMNS,
    integral,
    outcome_of,
    summarized,
    timelines,
)
from benchmarks.timeline import RequestRecord
from deployments.config import GatewayArgs, ModelArgs
from engine.config import EngineConfig


def request(at_s: float, ttft_s: float | None = 0.5) -> Request:
    error = "HTTP 503" if ttft_s is None else None
    return Request(at_s=at_s, ttft_s=ttft_s, tpot_s=0.1, send_lag_s=0.001, error=error)


def run_of(
    contestant: str, ramp_ttft_s: float, num_replicas: int, number: int = 0, num_parked: int = 0
) -> Run:
    """A thousand quick requests in quiet times, and a hundred in the first ramp."""
    ramp_s = PACED.shape.ramp_begins_s[0]
    return Run(
        scenario="paced",
        contestant=contestant,
        round=number,
        requests=[request(i / 1000) for i in range(1000)]
        + [request(ramp_s + i / 10, ramp_ttft_s) for i in range(100)],
        num_unfinished=0,
        samples=[
            Sample(at_s, num_replicas, num_replicas - num_parked, num_parked)
            for at_s in (-9.0, 1.0)
        ],
        machine_cpu_share=0.5,
        git_sha="abc",
    )


def test_a_load_triples_within_a_ramp_twice_and_comes_back_between() -> None:
    for scenario in SCENARIOS.values():
        shape, schedule = scenario.shape, scenario.shape.schedule
        for begin_s in shape.ramp_begins_s:
            top = schedule.rate_at(begin_s + shape.ramp_s)
            assert schedule.rate_at(begin_s) * 3 == pytest.approx(top)
            assert schedule.rate_at(begin_s - 1.0) == shape.base_rate_per_s
        assert not shape.ramps[0].covers(shape.ramp_begins_s[1])
        assert shape.ramps[1].end_s <= schedule.duration_s


def test_the_product_has_seen_one_burst_and_serves_policy_more_than_it_looks_back_to() -> None:
    shape = PACED.shape
    ours, serves = (shape.history(kind) for kind in ("predictive", "serve"))
    rates = [ours.rate_at(at_s) for at_s in range(int(ours.duration_s))]
    assert max(rates) == shape.peak_rate_per_s
    assert rates[0] == rates[-1] == shape.base_rate_per_s
    assert {serves.rate_at(at_s) for at_s in range(40)} == {shape.base_rate_per_s}
    assert serves.duration_s > TUNED["look_back_period_s"] + TUNED["downscale_delay_s"]


def test_arrivals_follow_the_rate_and_are_the_same_for_the_same_seed() -> None:
    schedule = RateSchedule(((0.0, 10.0), (100.0, 10.0), (100.0, 40.0), (200.0, 40.0)))
    arrivals_s = schedule.arrivals_s(seed=1)
    assert arrivals_s == schedule.arrivals_s(seed=1) == sorted(arrivals_s)
    assert arrivals_s != schedule.arrivals_s(seed=2)
    num_early = sum(at_s < 100.0 for at_s in arrivals_s)
    assert num_early == pytest.approx(1000, rel=0.15)
    assert len(arrivals_s) - num_early == pytest.approx(4000, rel=0.1)
    assert arrivals_s[-1] < 200.0


@pytest.mark.parametrize(
    "points", [((0.0, 1.0),), ((1.0, 1.0), (2.0, 1.0)), ((0.0, 1.0), (2.0, -1.0))]
)
def test_a_schedule_that_makes_no_sense_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"schedule|negative"):
        RateSchedule(points)


async def test_requests_are_sent_when_due_however_long_others_take_and_not_for_ever() -> None:
    started: list[float] = []

    async def send(index: int, intended_s: float) -> RequestRecord:
        started.append(time.perf_counter() - intended_s)
        if index == 0:
            await asyncio.sleep(60.0)
        return RequestRecord(intended_s, intended_s, intended_s, (), 200, 0, None)

    outcome = await send_at([0.0, 0.01, 0.02], time.perf_counter(), 0.05, send)
    assert (len(outcome.records), outcome.num_unfinished) == (2, 1)
    assert all(0.0 <= lag_s < 0.05 for lag_s in started)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=str)
def test_all_contestants_run_the_same_engines_and_their_files_are_valid(scenario: Scenario) -> None:
    for contestant in contestants(scenario):
        gateway, model = contestant_file(contestant, scenario, "m", 8000)["applications"]
        GatewayArgs.model_validate(gateway["args"])
        args = model["args"]
        if contestant.kind == "serve":
            assert args["autoscaling_config"]["max_replicas"] == scenario.max_replicas
            args = args["model"]
        parsed = ModelArgs.model_validate(args)
        assert parsed.engine == EngineConfig.model_validate(dict(scenario.engine))
        assert (parsed.autoscaling is not None) == (contestant.kind == "predictive")
        if contestant.kind == "predictive":
            (autoscaler,) = (d for d in gateway["deployments"] if d["name"] == "Autoscaler")
            config = AutoscalerConfig.model_validate(autoscaler["user_config"])
            assert config.models[0].parked_cost == PARKED_COST


def test_serves_policy_is_measured_at_three_targets_and_with_its_own_delays() -> None:
    settings = [c.autoscaling for c in contestants(PACED) if c.kind == "serve"]
    quick = [s for s in settings if s.get("upscale_delay_s", 30.0) <= 2.0]
    assert len({s["target_ongoing_requests"] for s in quick}) == 3
    assert any("upscale_delay_s" not in s for s in settings)


def test_replica_seconds_are_the_integral_between_samples() -> None:
    samples = [Sample(1.0, 3, 3, 0), Sample(4.0, 5, 3, 1), Sample(30.0, 9, 9, 0)]
    assert integral(samples, Span(2.0, 10.0), lambda s: s.num_alive) == 3 * 2.0 + 5 * 6.0
    assert integral(samples, Span(0.0, 2.0), lambda s: s.num_alive) == 6.0  # the first holds before
    assert integral(samples, Span(40.0, 42.0), lambda s: s.num_alive) == 18.0  # the last holds on
    with pytest.raises(ValueError, match="never looked at"):
        integral([], Span(0.0, 1.0), lambda s: s.num_alive)


def test_what_comes_before_the_fleet_has_settled_does_not_count() -> None:
    run = run_of(OURS, 1.0, 4)
    early = replace_requests(run, [*run.requests, *(request(-1.0, 99.0) for _ in range(500))])
    assert outcome_of(early, PACED) == outcome_of(run, PACED)


def test_late_are_those_above_the_target_and_those_that_failed() -> None:
    run = run_of(OURS, PACED.ttft_target_s + 0.1, 4)
    failed = replace_requests(run, [*run.requests[:1000], request(run.requests[-1].at_s, None)])
    assert outcome_of(run, PACED).ramp_late_share == 1.0
    assert outcome_of(run, PACED).late_share == pytest.approx(100 / 1100)
    assert outcome_of(run, PACED).num_failed == 0
    outcome = outcome_of(
        replace_requests(failed, [*failed.requests, request(run.requests[-1].at_s)]), PACED
    )
    assert outcome.ramp_late_share == 0.5
    assert outcome.num_failed == 1


def replace_requests(run: Run, requests: list[Request]) -> Run:
    return msgspec.structs.replace(run, requests=requests)


def test_asleep_replicas_count_in_full_and_at_what_they_cost() -> None:
    outcome = outcome_of(run_of(OURS, 1.0, 10, num_parked=4), PACED)
    duration_s = PACED.shape.schedule.duration_s
    assert outcome.replica_seconds == pytest.approx(10 * duration_s)
    assert outcome.cost_s(1.0) == outcome.replica_seconds
    assert outcome.cost_s(0.25) == pytest.approx(7 * duration_s)
    assert outcome.serving_seconds + outcome.parked_seconds == outcome.replica_seconds


def test_ours_is_compared_with_the_target_that_is_best_for_serve_by_medians_of_rounds() -> None:
    runs = [
        *(run_of(OURS, ttft_s, 8, number) for number, ttft_s in enumerate((1.0, 1.2, 9.0))),
        run_of("serve_2", 12.0, 10),
        run_of("serve_3", 9.0, 6),
        run_of(STATIC, 0.5, 9),
    ]
    cases = {case.case: case for case in summarized(PACED, runs, 0.25)}
    times = cases["paced_beside_serve_3_ramp_ttft_p99_times_shorter"]
    assert times.value == pytest.approx(9.0 / 1.2)
    assert times.limit == GOAL_TIMES_SHORTER
    assert cases["paced_beside_serve_3_cost"].of_limit == pytest.approx(8 / 6)
    assert cases["paced_beside_serve_2_cost"].value == pytest.approx(8 / 10)
    assert cases["paced_beside_serve_2_cost"].limit is None
    assert cases["paced_static_peak_ramp_ttft_p99"].value == 0.5


def test_without_ours_there_is_nothing_to_compare() -> None:
    cases = summarized(PACED, [run_of("serve_2", 1.0, 8), run_of(STATIC, 0.5, 9)], 0.25)
    assert not any("beside" in case.case for case in cases)


def test_timelines_have_a_row_for_each_second() -> None:
    rows = timelines([run_of(OURS, 2.0, 8)]).splitlines()
    assert rows[0] == ",".join(TIMELINE_COLUMNS)
    assert len(rows) == 1 + int(PACED.shape.schedule.duration_s)
    first_of_ramp = rows[1 + int(PACED.shape.ramp_begins_s[0])].split(",")
    assert first_of_ramp[5:9] == ["10", "2.0", "2.0", "10"]


def test_engines_are_counted_by_the_metrics_of_gateway_and_autoscaler() -> None:
    page = "\n".join(
        [
            f'{ACCEPTING}{{model_name="m"}} 3.0',
            f'{ACCEPTING}{{model_name="other"}} 7.0',
            f'{REPLICAS}{{model_name="m",rung="parked"}} 2.0',
            f'{REPLICAS}{{model_name="m",rung="serving"}} 3.0',
            "",
        ]
    )
    assert count_engines(page, "m") == (3, 2)


def test_contestants_of_a_scenario_have_names_of_their_own() -> None:
    for scenario in SCENARIOS.values():
        names = [contestant.name for contestant in contestants(scenario)]
        assert len(set(names)) == len(names)


def test_starts_from_memory_are_compared_with_cold_ones_by_late_requests_and_cost() -> None:
    target_s = LADDER.ttft_target_s
    cold = msgspec.structs.replace(run_of(COLD, target_s + 1.0, 8), scenario="ladder")
    staged = msgspec.structs.replace(run_of(STAGED, target_s - 0.1, 6), scenario="ladder")
    cases = {case.case: case for case in summarized(LADDER, [cold, staged], 0.25)}
    times = cases["ladder_staged_beside_cold_times_fewer_late"]
    assert times.value == pytest.approx(outcome_of(cold, LADDER).late_share * 1100 / 0.5)
    assert times.limit == GOAL_TIMES_FEWER
    assert cases["ladder_staged_beside_cold_cost"].of_limit == pytest.approx(6 / 8)


def test_the_two_of_the_ladder_differ_in_where_weights_lie_alone() -> None:
    cold, staged = contestants(LADDER)
    files = [
        contestant_file(each, LADDER, "m", 8000)["applications"][1]["args"]
        for each in (cold, staged)
    ]
    assert files[1]["node_cache"].pop("weights") == {"host_bytes": 2**30}
    assert files[0] == files[1]
