"""What is told of the gaps, and which configurations are compared."""

import pytest

from benchmarks.stutter import make_configs
from benchmarks.stutter_run import Scene
from benchmarks.stutter_summary import (
    TABLE_HEAD,
    Arrival,
    StutterColumn,
    summarize_stutter,
    table_row,
)
from engine.config import EngineConfig

CALM = Arrival(
    undisturbed_gaps_s=(0.010, 0.010, 0.020),
    gaps_s=(0.015, 0.025),
    prefill_s=2.5,
    alone_s=2.0,
)
SCENE = Scene(
    num_streams=16,
    stream_prompt_len=128,
    long_prompt_len=6000,
    num_undisturbed_steps=64,
    smallest_chunk=16,
)


def test_gaps_of_all_arrivals_count_together_and_speeds_are_medians() -> None:
    slow = Arrival((0.010,), (0.035,), prefill_s=10.0, alone_s=2.5)
    column = StutterColumn.of([CALM, slow, CALM], prompt_len=1000)
    assert column.undisturbed.p50_ms == pytest.approx(10.0)
    assert column.undisturbed.max_ms == pytest.approx(20.0)
    assert column.beside_prefill.max_ms == pytest.approx(35.0)
    assert column.prefill_tokens_per_s == 400.0
    assert column.alone_tokens_per_s == 500.0
    assert column.prefill_share == pytest.approx(0.8)
    assert column.stretch == pytest.approx(column.beside_prefill.p99_ms / column.undisturbed.p99_ms)


def test_figures_stand_next_to_those_of_another_column() -> None:
    column = StutterColumn.of([CALM], prompt_len=1000)
    results = {
        case.case: case
        for case in summarize_stutter("default", column, peer="unchunked", beside=column)
    }
    assert len(results) == 10
    assert all(case.peer_value == case.value for case in results.values())
    assert results["default_stretch"].limit == 2.0
    assert results["default_prefill_share"].of_limit == pytest.approx(1.0)
    assert results["default_undisturbed_gap_p99"].limit is None
    alone = summarize_stutter("chunk_64", column)
    assert all(case.peer is None for case in alone)


def test_a_row_stands_under_its_head() -> None:
    row = table_row("chunk_1024", StutterColumn.of([CALM], prompt_len=1000))
    assert len({len(line) for line in (*TABLE_HEAD.splitlines()[:1], row)}) == 1


def test_the_default_stays_what_it_is() -> None:
    base = EngineConfig()
    assert make_configs(base, SCENE, chunks=(), stretches=())["default"] is base


def test_streams_take_nothing_of_a_fixed_chunk_and_no_limit_does() -> None:
    configs = make_configs(EngineConfig(), SCENE, chunks=(32, 512), stretches=())
    assert list(configs) == ["default", "unchunked", "chunk_32", "chunk_512"]
    assert configs["unchunked"].max_num_batched_tokens == 6016
    assert configs["chunk_32"].max_num_batched_tokens == 48
    assert all(config.max_step_stretch is None for config in list(configs.values())[1:])


def test_a_stretched_column_differs_from_the_default_by_the_stretch_alone() -> None:
    configs = make_configs(EngineConfig(), SCENE, chunks=(), stretches=(1.5,))
    assert configs["stretch_1.5"] == EngineConfig(max_step_stretch=1.5)


def test_a_stream_outlasts_the_prefill_in_the_smallest_chunks() -> None:
    num_steps = SCENE.num_streams + SCENE.num_undisturbed_steps + 6000 // 16
    assert num_steps < SCENE.stream_len < 2 * num_steps
