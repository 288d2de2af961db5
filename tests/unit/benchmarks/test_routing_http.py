"""The router's benchmark over HTTP without its servers: what is asked, reckoned and simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from benchmarks.fleet_file import FleetShape, fleets_file
from benchmarks.result import CaseResult
from benchmarks.routing_http_contest import round_load, warm_up_workload
from benchmarks.routing_http_fleet import CpuReading, busy_shares
from benchmarks.routing_http_scenarios import PACED, SCENARIOS, Scenario
from benchmarks.routing_http_simulated import RoundSimulator
from benchmarks.routing_http_summary import compared
from engine.config import EngineConfig


def run_of(ttft_ms: float) -> list[CaseResult]:
    return [
        CaseResult(case="ttft_mean", value=ttft_ms, unit="ms"),
        CaseResult(case="gap_p50", value=1.0, unit="ms"),
    ]


def test_how_many_times_shorter_is_of_pairs_of_rounds() -> None:
    ours = [run_of(100.0), run_of(200.0), run_of(100.0)]
    theirs = [run_of(300.0), run_of(800.0), run_of(250.0)]
    cases = {
        case.case: case for case in compared("paced", {"headwater": ours, "power_of_two": theirs})
    }
    assert cases["paced_power_of_two_ttft_mean_times_shorter"].value == 3.0
    assert cases["paced_power_of_two_ttft_mean_times_shorter"].of_limit == 1.0
    assert cases["paced_power_of_two_ttft_mean"].peer_value == 300.0
    assert "paced_power_of_two_gap_p50" not in cases


def test_shares_are_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    shares = busy_shares(CpuReading(10.0, 1.0, 5.0), CpuReading(20.0, 5.0, 20.0))
    assert shares == pytest.approx((0.2, 0.75))


def test_both_fleets_run_the_same_engines() -> None:
    shape = FleetShape("m", 3, 2, PACED.engine, ("power_of_two", "ray_prefix"))
    _, model, peer = fleets_file(shape, 8000)["applications"]
    for name in ("engine", "num_replicas", "name"):
        assert model["args"][name] == peer["args"][name]
    assert peer["args"]["routers"] == ["power_of_two", "ray_prefix"]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=str)
def test_engines_of_scenarios_are_valid(scenario: Scenario) -> None:
    EngineConfig.model_validate(dict(scenario.engine))


def one_token_per_word(messages: Sequence[Mapping[str, str]]) -> list[int]:
    return [sum(map(ord, word)) for message in messages for word in message["content"].split()]


def test_simulated_rounds_are_repeatable_and_tell_policies_apart() -> None:
    scenario = replace(PACED, num_replicas=3, num_gateways=1, num_requests=36, rate_per_s=2.0)
    simulator = RoundSimulator(scenario, one_token_per_word)
    warm_up = (warm_up_workload(scenario)[0], 6)
    ours, again, power_of_two = (
        simulator.run(policy, round_load(scenario, 0), "0", warm_up)
        for policy in ("headwater", "headwater", "power_of_two")
    )
    assert ours == again
    assert ours.hit_rate > power_of_two.hit_rate + 0.05
    assert ours.ttft_s < power_of_two.ttft_s
