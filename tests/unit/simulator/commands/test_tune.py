"""What can't be tuned is said in a line, and nothing is written."""

import argparse
from pathlib import Path

import pytest

from engine.config import EngineConfig
from simulator.commands import tune
from simulator.commands.tune import BAD_INPUT, _describe_changes

FILE = """
applications:
  - name: tiny
    import_path: deployments.build:build_model
    args: {name: tiny, source: x, engine: {kv_cache_bytes: 4000000000}}
"""
GPU = ["--gpu", "h100-llama2-70b-tp8"]
SMALL = ["--requests", "5", "--batch", "4", "--step-tokens", "512"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(FILE)
    return path


def run(base: Path, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    out = [] if "--out" in arguments else ["--out", str(base.with_name("out.yaml"))]
    return tune.run(parser.parse_args([str(base), *out, *arguments]))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([*GPU, "--slo", "ttft=3"], "ttft_p95_ms=700"),
        (["--gpu", "b300", "--slo", "ttft_p95_ms=9"], "choose one of h100-llama2-70b-tp8"),
        (["--profile", "/absent.json", "--slo", "ttft_p95_ms=9"], "headwater profile MODEL"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--margin", "1"], "--margin is 1.0"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--batch", "0"], "counts of 1 and more"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--margin", "nan"], "--margin is nan"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--requests", "0"], "requests are 1 to"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--prompt-tokens", "9" * 12], "answers 1 to"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--out", "/proc/x.yaml"], "cannot be written"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--model", "b"], "no model 'b'"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--trace", "/absent.csv"], "/absent.csv cannot be read"),
        ([*GPU, "--slo", "ttft_p95_ms=9", "--out", "/absent/x.yaml"], "no folder /absent"),
        ([*GPU, "--slo", "ttft_p95_ms=9", *SMALL], "ttft_p95_ms is"),
        ([*GPU, "--slo", "tpot_p99_ms=9", *SMALL], "over 8.1"),
    ],
)
def test_bad_input_is_said_in_a_line(
    base: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run(base, *arguments) == BAD_INPUT
    assert complaint in capsys.readouterr().err
    assert not base.with_name("out.yaml").exists()


def test_limits_that_are_out_of_reach_come_with_what_can_be_changed(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(base, *GPU, "--slo", "tpot_p99_ms=9", *SMALL) == BAD_INPUT
    said = capsys.readouterr().err
    for option in ("loosen --slo", "--margin (0.1 of", "--prompt-tokens (now 512)", "--gpu that"):
        assert option in said
    trace = base.with_name("azure.csv")
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n")
    limits = ["--slo", "tpot_p99_ms=9", "--margin", "0", "--trace", str(trace)]
    assert run(base, *GPU, *limits, *SMALL) == BAD_INPUT
    said = capsys.readouterr().err
    assert "--trace of shorter prompts" in said
    assert "--prompt-tokens" not in said
    assert "--margin" not in said


def test_settings_that_become_others_are_said() -> None:
    engine = EngineConfig(max_num_seqs=64, max_step_stretch=2.0)
    changes = {"dtype": engine.dtype, "max_num_seqs": 4, "max_step_stretch": None}
    said, reason = _describe_changes(engine, changes).splitlines()
    assert said == "engine settings: max_num_seqs 4 (was 64), max_step_stretch null (was 2.0)"
    assert "max_step_stretch is null since the limits are kept without it" in reason
    free = EngineConfig(max_num_seqs=4, max_step_stretch=None)
    assert _describe_changes(free, changes) == "engine settings: as they were"


def test_a_profile_of_another_model_is_refused(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.unit.simulator.test_replica_kind import PROFILE

    path = base.with_name("profile.json")
    PROFILE.write(path)
    base.write_text(FILE.replace("name: tiny,", "name: other,"))
    assert run(base, "--profile", str(path), "--slo", "ttft_p95_ms=9") == BAD_INPUT
    assert "is of tiny, and" in capsys.readouterr().err


def test_the_file_that_is_tuned_is_not_written_over(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(base, *GPU, "--slo", "ttft_p95_ms=9", "--out", str(base)) == BAD_INPUT
    assert "for something else, too" in capsys.readouterr().err
    assert base.read_text() == FILE


def test_a_file_without_end_of_nesting_is_refused(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base.write_text("[" * 1000)
    assert run(base, *GPU, "--slo", "ttft_p95_ms=9") == BAD_INPUT
    assert "is no YAML" in capsys.readouterr().err
