"""`headwater profile` on a paced engine: each step is measured with the work that it really did."""

import argparse
from pathlib import Path

import pytest

from deployments.bench_target import BenchTarget
from deployments.commands.profile import _each_precision, add_arguments
from deployments.offline_engine import OfflineEngine
from deployments.profile_run import ProfileGrid, measure_grid
from engine.config import EngineConfig, PacedConfig
from engine.errors import EngineConfigError
from engine.performance_profile import StepSample
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

pytestmark = pytest.mark.integration

PACED = PacedConfig(
    step_base_s=1e-4,
    per_decode_s=1e-4,
    per_prefill_token_s=2e-5,
    per_context_token_s=1e-6,
    per_attended_token_s=1e-7,
)
GRID = ProfileGrid(prefills=(8, 16), decodes=(1, 3), contexts=(20, 60), num_steps=4, num_prompts=2)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["tiny", "--out", "x.json", *arguments])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile") / "tiny"
    write_checkpoint(make_tiny_model("llama"), folder)
    return folder


def measure(checkpoint: Path, grid: ProfileGrid, said: list[str], **more: int) -> list[StepSample]:
    target = BenchTarget("tiny", checkpoint, EngineConfig(runner="paced", paced=PACED, **more))
    arguments = ["--prefill", *map(str, grid.prefills), "--decodes", *map(str, grid.decodes)]
    [target] = _each_precision(target, options(*arguments))
    engine = OfflineEngine("tiny", checkpoint, target.config)
    try:
        return measure_grid(engine, grid, said.append)
    finally:
        engine.close()


def test_every_step_is_told_with_its_work(checkpoint: Path) -> None:
    said: list[str] = []
    samples = measure(checkpoint, GRID, said)
    assert said == []
    check_times(samples)
    # Alone: both prompts, and one of 76 tokens in steps of 19, the budget.
    alone = [(s.num_prefill_tokens, s.num_attended_tokens) for s in samples if s.num_decodes == 0]
    assert alone == [(8, 32), (16, 128)] + [(19, 19 * (19 * n + 9.5)) for n in range(4)]
    beside = [s for s in samples if s.num_decodes]
    kinds = [(s.num_decodes, s.num_prefill_tokens, s.num_steps) for s in beside]
    assert kinds == [(n, *kind) for n in (1, 3, 1, 3) for kind in ((0, 4), (8, 2), (16, 2))]
    # One sequence of 20 tokens: 3 warm it up, 4 are measured, 2 more run beside each prompt.
    assert [s.num_context_tokens for s in beside[:3]] == [23 + 1.5, 27 + 0.5, 29 + 0.5]


def check_times(samples: list[StepSample]) -> None:
    """No step is shorter than its work takes."""
    for sample in samples:
        least_s = (
            PACED.step_base_s
            + PACED.per_prefill_token_s * sample.num_prefill_tokens
            + PACED.per_decode_s * sample.num_decodes
            + PACED.per_context_token_s * sample.num_context_tokens
            + PACED.per_attended_token_s * sample.num_attended_tokens
        )
        assert sample.time_s > 0.95 * least_s


def test_what_does_not_fit_the_pool_is_left_out_and_said(checkpoint: Path) -> None:
    said: list[str] = []
    pool = 100 * 2 * 2 * 8 * 2 * 2 * 16 // 16  # 100 tokens: 2 layers, 2 heads of 8, keys, values
    samples = measure(checkpoint, GRID, said, kv_cache_bytes=pool)
    assert said == ["3 of 4 pairs of decodes and context don't fit the KV pool"]
    assert {s.num_decodes for s in samples} == {0, 1}
    with pytest.raises(EngineConfigError, match="lower --decodes, --context"):
        measure(checkpoint, GRID, [], kv_cache_bytes=pool // 3)
