"""The autoscaling benchmark's rival on a real Ray: Serve's own policy sees what engines hold."""

from dataclasses import replace

import pytest

from benchmarks.autoscale_live_run import measure
from benchmarks.autoscale_live_scenarios import PACED, Contestant, Shape
from benchmarks.autoscale_live_summary import outcome_of
from tests.quickstart import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_serves_default_policy_follows_the_recorded_counts_and_no_request_fails() -> None:
    paced = {**PACED.engine["paced"], "start_s": 0.0}
    scenario = replace(
        PACED,
        engine={**PACED.engine, "paced": paced},
        base_replicas=1,
        max_replicas=4,
        shape=Shape(
            base_rate_per_s=3.0,
            peak_rate_per_s=9.0,
            ramp_s=8.0,
            lead_in_s=2.0,
            height_s=12.0,
            descent_s=4.0,
            between_s=4.0,
            settle_s=10.0,
        ),
    )
    quick = {
        "metrics_interval_s": 1.0,
        "look_back_period_s": 2.0,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 600.0,
        "target_ongoing_requests": 2.0,
    }
    run = measure(scenario, Contestant("serve", "serve", quick), 0, model=MODEL, git_sha="")
    outcome = outcome_of(run, scenario)
    assert outcome.num_failed == 0
    assert outcome.num_requests > 200
    # Serve's own count stays at zero: without what replicas record, one would stay alone.
    assert outcome.max_replicas >= 3
    assert run.samples[-1].num_serving >= 3
