"""The autoscaling benchmark picks its day, scales it, tells good minutes from bad ones, and says
where traces come from.
"""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import autoscaling
from benchmarks.autoscaling_day import (
    Capacity,
    DayPlan,
    Trial,
    fewest,
    good_share,
    steady,
    typical_day,
)
from benchmarks.autoscaling_hits import HitFigures, hit_cases
from benchmarks.autoscaling_rates import measure_rates
from benchmarks.autoscaling_windows import Window, WindowFigures, window_cases
from engine.performance_profile import StepCost
from simulator.scaling.day_fleet import DayOutcome, DaySpec
from simulator.scaling.day_workload import ChatShape
from simulator.scaling.rate_trace import RateTrace

SHAPE = ChatShape(num_turns=3, num_system_tokens=256, user_tokens=100.0, answer_tokens=30.0)


def trace_of(*day_means: float) -> RateTrace:
    rates = np.repeat(np.array(day_means), 144)
    return RateTrace("t", rates, rates)


def test_the_day_is_the_one_nearest_to_the_mean_but_never_the_first() -> None:
    assert typical_day(trace_of(10.0, 30.0, 11.0, 5.0)) == 2


def test_the_busiest_ten_minutes_of_the_trace_are_the_peak() -> None:
    plan = DayPlan(trace_of(5.0, 10.0, 5.0), 1, SHAPE, peak_rps=3.0, warm_up_s=600.0)
    day = plan.workload(7200.0, 9000.0).between(600.0, 1800.0)
    assert len(day) / 1200 == pytest.approx(3.0, rel=0.1)


def test_the_load_doubles_in_the_burst() -> None:
    plan = DayPlan(trace_of(10.0, 10.0), 1, ChatShape(), peak_rps=20.0, warm_up_s=600.0)
    around = plan.workload(plan.burst_s - 900, plan.burst_s + 200)
    before, after = (len(around.between(*each)) for each in ((840, 900), (960, 1020)))
    assert 1.6 < after / before < 2.4


def test_a_minute_is_good_if_both_percentiles_are() -> None:
    arrivals_s = np.repeat([0.0, 60.0, 120.0, 180.0], 50)
    ttft_s, tpot_s = np.full(200, 0.1), np.full(200, 0.01)
    ttft_s[:5] = 2.0
    tpot_s[60:65] = 0.05
    tpot_s[100:150] = np.nan
    outcome = DayOutcome(ttft_s, tpot_s, 0.5)
    assert good_share(arrivals_s, outcome, 0.0) == 0.5
    assert good_share(arrivals_s, outcome, 60.0) == pytest.approx(2 / 3)


def test_the_fewest_that_hold_are_found_from_either_side() -> None:
    cost = StepCost(base_s=0.01, per_prefill_token_s=4e-5, per_decode_s=4e-3)
    spec = DaySpec(cost, 10**6)
    found = [fewest(SHAPE, spec, 12.0, 240.0, first=first) for first in (1, 4)]
    assert isinstance(found[0], Trial)
    assert found[0].num_replicas == found[1].num_replicas > 1
    assert found[0].is_held


def test_a_steady_load_is_steady() -> None:
    workload = steady(SHAPE, 20.0, 200.0)
    halves = np.histogram(workload.arrivals_s, 2)[0]
    assert len(workload) / 200 == pytest.approx(20, rel=0.15)
    assert halves[0] == pytest.approx(halves[1], rel=0.15)


def test_figures_of_rates_have_the_peer_and_the_limits() -> None:
    counts = np.random.default_rng(0).poisson(120, 80)
    cases = {case.case: case for case in measure_rates(counts, leads_s=(30.0,), is_short=True)}
    ours = cases["30s_headwater_cost"]
    assert ours.peer == "last_value"
    assert ours.limit == pytest.approx(0.97 * cases["30s_last_value_cost"].value)
    assert cases["30s_headwater_changes"].limit == 150
    assert cases["30s_keda_cost"].limit is None


def test_figures_of_windows_and_hits_name_what_they_are() -> None:
    day, whole = WindowFigures(0.5, 0.02, 0.5, 2.0), WindowFigures(0.4, 0.02, 0.5, 2.0)
    window = Window("peak", 100, 3, day, whole)
    cases = {case.case: case for case in window_cases("window", [window])}
    assert cases["window_peak_ttft_p99_difference"].value == pytest.approx(0.25)
    assert cases["window_peak_ttft_p99_difference"].of_limit == pytest.approx(0.25 / 0.15)
    hits = HitFigures(0.8, 10, 500.0, 0.2, 0.03, 1.0, 0.1)
    names = [case.case for case in hit_cases([hits] * 4)]
    assert names[0] == "hits80_rate"
    assert "hits0_usd_per_million_tokens" in names


def test_who_is_larger_gets_twice_the_static_peak_at_most() -> None:
    setting = Capacity(13, 8.0, 90.0).setting(120.0)
    assert (setting.max_replicas, setting.tick_s) == (26, 1.0)


@pytest.mark.parametrize("folder", [None, "empty"])
def test_without_traces_it_says_where_they_are(
    folder: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("HEADWATER_TRACES", raising=False)
    if folder is not None:
        monkeypatch.setenv("HEADWATER_TRACES", str(tmp_path))
    assert autoscaling.main(["--out", str(tmp_path / "out.json")]) == 1
    assert "github.com/alibaba/ServeGen" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
