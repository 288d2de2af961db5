"""A search finds the settings that bear the most within limits, or says what can't be had."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.performance_profile import StepCost
from simulator.performance import LinearModel
from simulator.replica_kind import ReplicaKind
from simulator.synthetic import poisson
from simulator.tuning import Found, Search, Setting, Slo, TuningError, parse_slo, settings_of
from simulator.workload import Workload

COST = StepCost(0.010, 1e-4, 1e-3)
CONFIG = EngineConfig(runner="paced", kv_cache_bytes=2_000_000)


def kind(label: str = "slow", cost: StepCost = COST, num_devices: int = 1) -> ReplicaKind:
    return ReplicaKind(
        label,
        LinearModel(cost),
        num_kv_tokens=20_000,
        kv_token_bytes=100,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        num_devices=num_devices,
        settings=(("tensor_parallel_size", num_devices),),
    )


def requests_at(requests_per_s: float) -> Workload:
    return poisson(
        num_requests=12,
        requests_per_s=requests_per_s,
        num_prompt_tokens=200,
        num_answer_tokens=12,
        block_size_tokens=16,
    )


def search(
    *slos: str, at: Callable[[float], Workload] = requests_at, margin: float = 0.0
) -> Search:
    return Search(CONFIG, [parse_slo(slo) for slo in slos], at, margin=margin)


def test_a_limit_is_a_figure_and_milliseconds() -> None:
    assert parse_slo("ttft_p95_ms=700") == Slo("ttft", "p95", 700.0)
    assert parse_slo("tpot_mean_ms=0.5").name == "tpot_mean_ms"


@pytest.mark.parametrize(
    "text", ["", "ttft=3", "ttft_p42_ms=3", "tpot_p99_ms=0", "ttft_p99_ms=1.2.3"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(TuningError, match="ttft_p95_ms=700"):
        parse_slo(text)


def test_settings_are_doubled_up_to_what_is_known_unless_they_are_given() -> None:
    settings = settings_of([kind()], [], [])
    assert sorted({s.max_num_seqs for s in settings}) == [4, 8, 16]
    assert sorted({s.max_num_batched_tokens for s in settings}) == [64, 128, 256, 512]
    assert settings_of([kind()], [3], [70]) == [Setting(kind(), 3, 70)]
    with pytest.raises(TuningError, match="up to 16 sequences, not with 17"):
        settings_of([kind()], [17], [])
    with pytest.raises(TuningError, match="up to 512 tokens, not of 513"):
        settings_of([kind()], [], [513])


def test_the_best_is_found_and_keeps_the_limits() -> None:
    tuning = search("ttft_p95_ms=400", "tpot_p99_ms=30")
    settings = settings_of([kind()], [1, 8], [64, 512])
    best = tuning.run(settings)
    assert tuning.keeps(best.outcome)
    alone = [search("ttft_p95_ms=400", "tpot_p99_ms=30").run([s]) for s in settings]
    most = max(found.tokens_per_s for found in alone)
    assert best.tokens_per_s >= 0.98 * most


def test_looser_limits_bear_more_and_a_margin_less() -> None:
    settings = [Setting(kind(), 16, 128)]
    tight, loose = (search(f"tpot_p99_ms={ms}").run(settings) for ms in (15, 40))
    assert loose.tokens_per_s > tight.tokens_per_s
    kept = search("tpot_p99_ms=40", margin=0.625).run(settings)
    assert kept.tokens_per_s == tight.tokens_per_s


def test_the_faster_precision_is_taken() -> None:
    fast = kind("fast", StepCost(0.005, 1e-4, 1e-3))
    found = search("tpot_p99_ms=40").run(settings_of([kind(), fast], [16], [128]))
    assert found.setting.kind.label == "fast"


def test_ranks_must_earn_their_devices() -> None:
    two = kind("two", StepCost(0.007, 7e-5, 7e-4), num_devices=2)
    settings = settings_of([kind("one"), two], [16], [64])

    def taken(slo: str) -> Found:
        return search(slo).run(settings)

    assert taken("tpot_p99_ms=60").setting.kind.label == "one"
    assert taken("tpot_mean_ms=10").setting.kind.label == "two"


def test_settings_are_an_engines_and_kv_fits_the_devices() -> None:
    small = replace(kind(num_devices=2), max_kv_bytes=1_000_000)
    tuning = search("ttft_p99_ms=1000")
    assert tuning.engine_settings(Setting(kind(), 8, 128))["kv_cache_bytes"] == 2_000_000
    assert tuning.engine_settings(Setting(small, 8, 128)) == {
        "tensor_parallel_size": 2,
        "kv_cache_bytes": 1_000_000,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "max_step_stretch": None,
        "tpot_target_s": None,
    }


def test_an_impossible_limit_is_said_with_how_near_one_gets() -> None:
    with pytest.raises(TuningError) as caught:
        search("ttft_p99_ms=1000", "tpot_mean_ms=5").run(settings_of([kind()], [1, 4], [512]))
    # A token takes 11 ms alone.
    assert "tpot_mean_ms is 11 at best, 6 over 5" in str(caught.value)
    assert "ttft" not in str(caught.value)


def test_requests_that_no_setting_holds_are_said() -> None:
    def too_long(requests_per_s: float) -> Workload:
        return poisson(
            num_requests=3,
            requests_per_s=requests_per_s,
            num_prompt_tokens=90_000,
            num_answer_tokens=2,
            block_size_tokens=16,
        )

    with pytest.raises(TuningError, match="no setting holds the longest request"):
        search("ttft_p99_ms=1000", at=too_long).run([Setting(kind(), 4, 512)])


def test_a_setting_that_no_engine_takes_is_named() -> None:
    with pytest.raises(TuningError, match="steps of 8 tokens: min_prefill_chunk_tokens"):
        search("ttft_p99_ms=1000").run([Setting(kind(), 4, 8)])
