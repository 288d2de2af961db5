"""The engine's page: valid, and with the values of what was reported."""

import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage
from engine.config import EngineConfig, EngineSpec
from engine.engine_metrics import EngineMetrics
from engine.messages import EngineRequest, LoadView, SamplingParams, TimelineEvent
from engine.observations import EngineStats, MemoryBytes, StepRecord, TierStats
from engine.rank_group import RankGroup
from engine.rank_messages import Ready, StepReport
from engine.rung_keeper import RungCounts, RungKeeper
from engine.rung_messages import RungState
from engine.start_stages import ReplicaStart
from engine.step_ring import StepRing
from engine.timelines import Timeline, begin_timeline

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

LOAD = LoadView(
    num_running=3,
    num_waiting=2,
    num_free_blocks=60,
    num_blocks=100,
    num_preemptions=4,
    num_cached_prompt_tokens=700,
    num_prompt_tokens=1000,
    num_generated_tokens=90,
)
STATS = EngineStats(
    num_steps=7,
    busy_time_s=0.5,
    num_failed_steps=1,
    num_out_of_memory_steps=2,
    num_leaked_blocks=3,
    num_computed_prompt_tokens=300,
    num_recomputed_tokens=20,
    num_kv_tokens=500,
    batch_efficiency=0.75,
    num_moved=6,
    tiers=TierStats(
        is_connected=True,
        num_stored_blocks=11,
        num_loaded_blocks={"host": 5, "disk": 6},
        num_failed_blocks={"disk": 1},
        num_dropped_blocks=2,
        num_wanted_blocks=8,
        transfer_s=0.25,
        load_s=0.125,
        fetch_s=1.5,
        num_fetches=9,
        num_timeouts=3,
        num_predictions=4,
        num_good_predictions=2,
        num_checks=7,
        num_differing=1,
        num_losses=1,
    ),
)
RECORD = StepRecord(
    step_id=7,
    started_s=1.0,
    step_time_s=0.012,
    num_prefill_tokens=30,
    num_decodes=3,
    num_running=3,
    num_waiting=2,
    num_admitted=1,
    num_preempted=0,
    num_finished=1,
    num_used_blocks=40,
    max_tokens=256,
    max_seqs=32,
    max_context_tokens=9000,
    limit_reason="tpot_target",
)
MEMORY = MemoryBytes(weights=1000, workspace=200, kv_pool=6400, kv_block=64, kv_token=4)


@dataclass
class FakeRanks:
    is_running: bool = True
    silence_s: float = 0.25
    pids: list[int] = field(default_factory=lambda: [os.getpid()])


def finished() -> Timeline:
    timeline = begin_timeline(
        EngineRequest("r", [1] * 10, b"", [], SamplingParams(max_tokens=5), timeout_s=1)
    )
    for event in (
        TimelineEvent("taken", 0.1),
        TimelineEvent("admitted", 0.2, 4),
        TimelineEvent("chunk", 0.3, 6),
        TimelineEvent("first_token", 0.5),
        TimelineEvent("last_token", 2.5, 5),
    ):
        timeline.add(event)
    return timeline


@dataclass
class FakeKeeper:
    state: RungState
    counts: RungCounts = field(default_factory=lambda: RungCounts(3, 2, 1))


SERVING = RungState(Rung.SERVING)
START = ReplicaStart(
    Rung.STAGED, 2.5, (Stage("imports", 0.75), Stage("weights", 1.0), Stage("weights", 0.5))
)


def page(*, num_ranks: int = 1, rung: RungState = SERVING) -> Samples:
    spec = EngineSpec(
        model="m", checkpoint=Path("m"), config=EngineConfig(tensor_parallel_size=num_ranks)
    )
    ready = Ready(100, 2048, 2048, 500, "rev", LoadView(), 1.0, 1.0, MEMORY)
    metrics = EngineMetrics(
        spec,
        ready,
        START,
        engine_id="m/1",
        steps=StepRing(),
        ranks=cast("RankGroup", FakeRanks()),
        rung=cast("RungKeeper", FakeKeeper(rung)),
    )
    report = StepReport([], LOAD, None, 0, STATS, RECORD)
    metrics.record(report, deque([finished()]))
    families = list(text_string_to_metric_families(metrics.render().decode()))
    assert len({family.name for family in families}) == len(families)
    assert all(family.name.startswith("headwater:") for family in families)
    return {
        (sample.name.removeprefix("headwater:"), frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    labels = {"model_name": "m", "engine": "m/1"} | labels
    return samples[name, frozenset(labels.items())]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("num_requests_running", 3),
        ("num_requests_waiting", 2),
        ("kv_cache_usage_perc", 0.4),
        ("prefix_cache_queries_total", 1000),
        ("prefix_cache_hits_total", 700),
        ("num_preemptions_total", 4),
        ("prompt_tokens_total", 300),
        ("prompt_tokens_recomputed_total", 20),
        ("generation_tokens_total", 90),
        ("steps_total", 7),
        ("step_busy_seconds_total", 0.5),
        ("failed_steps_total", 1),
        ("out_of_memory_steps_total", 2),
        ("kv_blocks_leaked_total", 3),
        ("step_token_budget", 256),
        ("max_running_sequences", 32),
        ("max_context_tokens", 9000),
        ("batch_efficiency", 0.75),
        ("rank_heartbeat_age_seconds", 0.25),
        ("kv_actual_bytes", 40 * 64),
        ("kv_theoretical_bytes", 500 * 4),
        ("step_time_seconds_count", 1),
        ("iteration_tokens_total_sum", 33),
        ("request_prompt_tokens_sum", 10),
        ("request_generation_tokens_sum", 5),
        ("request_params_max_tokens_sum", 5),
        ("request_params_n_sum", 1),
        ("kv_tier_connected", 1),
        ("kv_tier_stored_blocks_total", 11),
        ("kv_tier_missing_slots_total", 2),
        ("kv_tier_wanted_blocks", 8),
        ("kv_tier_transfer_seconds_total", 0.25),
        ("kv_tier_load_seconds_total", 0.125),
        ("kv_tier_fetch_seconds_total", 1.5),
        ("kv_tier_fetches_total", 9),
        ("kv_tier_fetch_timeouts_total", 3),
        ("kv_tier_predictions_total", 4),
        ("kv_tier_predictions_within_25_percent_total", 2),
        ("kv_tier_shadow_checks_total", 7),
        ("kv_tier_shadow_check_failures_total", 1),
        ("kv_tier_losses_total", 1),
    ],
)
def test_what_was_reported_is_shown(name: str, expected: float) -> None:
    assert value(page(), name) == pytest.approx(expected)


def test_blocks_of_tiers_are_shown_by_kind() -> None:
    samples = page()
    assert value(samples, "kv_tier_loaded_blocks_total", kind="host") == 5
    assert value(samples, "kv_tier_loaded_blocks_total", kind="disk") == 6
    assert value(samples, "kv_tier_failed_blocks_total", kind="disk") == 1


def test_a_start_is_shown_by_stages_with_where_it_began() -> None:
    samples = page()
    assert value(samples, "start_seconds", rung="staged") == 2.5
    assert value(samples, "start_stage_seconds", stage="imports") == 0.75
    assert value(samples, "start_stage_seconds", stage="weights") == 1.5


def test_times_of_a_request_are_those_between_its_notes() -> None:
    samples = page()
    for name, expected_s in (("queue", 0.1), ("prefill", 0.3), ("decode", 2.0), ("inference", 2.3)):
        assert value(samples, f"request_{name}_time_seconds_sum") == pytest.approx(expected_s)


def test_one_reason_for_the_limits_is_shown_as_one() -> None:
    samples = page()
    reasons = ("configured", "tpot_target", "memory", "length")
    shown = [value(samples, "step_limit_reason", reason=reason) for reason in reasons]
    assert shown == [0, 1, 0, 0]


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_memory_is_of_all_ranks_by_kind(num_ranks: int) -> None:
    samples = page(num_ranks=num_ranks)
    by_kind = {
        kind: value(samples, "memory_bytes", kind=kind)
        for kind in ("weights", "workspace", "kv_pool", "kv_used", "other")
    }
    other = by_kind.pop("other")
    assert by_kind == {
        "weights": 1000 * num_ranks,
        "workspace": 200 * num_ranks,
        "kv_pool": 6400 * num_ranks,
        "kv_used": 40 * 64 * num_ranks,
    }
    assert other > 1e6  # this very process, in place of the ranks


def test_a_parked_replica_has_no_pool_and_says_how_long_its_moves_took() -> None:
    samples = page(rung=RungState(Rung.PARKED, is_moving=True, wake_s=0.25, sleep_s=1.5))
    assert value(samples, "rung") == 3
    assert value(samples, "rung_moving") == 1
    assert value(samples, "rung_sleeps_total") == 3
    assert value(samples, "rung_wakes_total") == 2
    assert value(samples, "rung_failed_wakes_total") == 1
    assert value(samples, "rung_last_wake_seconds") == 0.25
    assert value(samples, "rung_last_sleep_seconds") == 1.5
    assert value(samples, "requests_moved_total") == 6
    assert value(samples, "kv_cache_usage_perc") == 0
    assert value(samples, "memory_bytes", kind="kv_pool") == 0
