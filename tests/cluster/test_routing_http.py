"""The benchmark of the router over HTTP, on a small fleet: it runs, and its signs hold."""

from pathlib import Path

import pytest

from benchmarks.result import read_result
from benchmarks.routing_http import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_more_of_prompts_is_cached_than_behind_serves_routers_and_first_tokens_come_sooner(
    tmp_path: Path,
) -> None:
    out = tmp_path / "routing.json"
    arguments = "--scenario paced --rounds 1 --replicas 4 --gateways 2 --rate 4 --num-requests 72"
    assert main(["--out", str(out), *arguments.split()]) == 0
    cases = {case.case: case for case in read_result(out).results}
    for peer in ("power_of_two", "ray_prefix"):
        assert cases[f"paced_{peer}_errors"].value == 0
        assert cases[f"paced_{peer}_errors"].peer_value == 0
    hits = cases["paced_power_of_two_hit_rate"]
    assert hits.peer_value is not None
    # Ray's prefix router is at work, and not its fallback.
    prefix_hits = cases["paced_ray_prefix_hit_rate"].peer_value
    assert prefix_hits is not None
    assert prefix_hits > hits.peer_value + 0.05
    # With four replicas the default router finds a conversation's history one time in four.
    assert hits.value > hits.peer_value + 0.05
    assert cases["paced_power_of_two_ttft_mean_times_shorter"].value > 1.0
