"""`headwater profile` measures what its arguments say; what it can't write is said beforehand."""

import argparse
from pathlib import Path

import pytest

from deployments.bench_target import BenchTarget
from deployments.commands import profile, replay
from deployments.commands.profile import BAD_INPUT, _each_precision, _grid, add_arguments
from engine.config import EngineConfig
from engine.errors import EngineConfigError


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["tiny", "--out", "x.json", *arguments])


def test_each_precision_is_measured_once_and_for_throughput() -> None:
    target = BenchTarget("tiny", Path("tiny"), EngineConfig(tpot_target_s=0.1, max_num_seqs=4))
    args = options("--quantization", "none", "int8", "none", "--decodes", "8", "--prefill", "32")
    none, int8 = (changed.config for changed in _each_precision(target, args))
    assert (none.quantization, int8.quantization) == ("none", "int8")
    for config in (none, int8):
        assert (config.max_num_seqs, config.max_num_batched_tokens) == (9, 40)
        assert (config.tpot_target_s, config.prefix_caching) == (None, False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--decodes", "4096"], "^--decodes, and a prompt beside: max_num_seqs would be 4097, and"),
        (
            ["--decodes", "1", "--prefill", "4"],
            "^min_prefill_chunk_tokens is 16.*; max_num_batched_tokens comes from --prefill and",
        ),
    ],
)
def test_options_that_no_engine_takes_are_named(arguments: list[str], complaint: str) -> None:
    target = BenchTarget("tiny", Path("tiny"), EngineConfig())
    with pytest.raises(EngineConfigError, match=complaint):
        _each_precision(target, options(*arguments))


def test_a_grid_is_in_order_and_without_repeats() -> None:
    grid = _grid(options("--prefill", "64", "16", "64"))
    assert grid.prefills == (16, 64)


@pytest.mark.parametrize(
    ("out", "complaint"),
    [("/absent/x.json", "no folder /absent"), ("/proc/x.json", "cannot be written")],
)
def test_where_nothing_can_be_written_nothing_is_measured(
    capsys: pytest.CaptureFixture[str], out: str, complaint: str
) -> None:
    assert profile.run(options("--out", out)) == BAD_INPUT
    assert complaint in capsys.readouterr().err


def test_a_replay_does_not_write_over_its_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.json"
    path.write_text("[]")
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    args = parser.parse_args(["tiny", "--requests", str(path), "--out", str(path)])
    assert replay.run(args) == BAD_INPUT
    assert "for something else, too" in capsys.readouterr().err
    assert path.read_text() == "[]"
