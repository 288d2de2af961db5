"""The short forms of the in-process benchmarks on the quickstart's model."""

from pathlib import Path

import pytest

from benchmarks import batching, stutter
from benchmarks.result import BenchmarkResult, read_result
from tests.quickstart import quickstart_checkpoint

pytestmark = pytest.mark.integration


def arguments(out: Path) -> list[str]:
    checkpoint = str(quickstart_checkpoint().path)
    return ["--short", "--threads", "1", "--checkpoint", checkpoint, "--out", str(out)]


def values_of(result: BenchmarkResult) -> dict[str, float]:
    return {case.case: case.value for case in result.results}


def test_every_batching_column_has_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "batching.json"
    assert batching.main(arguments(out)) == 0
    result = read_result(out)
    values = values_of(result)
    for name in ("continuous", "static", "static_compact", "dynamic"):
        assert values[f"{name}_tokens_per_s"] > 0.0
        assert 0.0 < values[f"{name}_ttft_p50"] <= values[f"{name}_ttft_p99"]
    assert values["continuous_useful_share"] > 0.9
    assert values["no_kv_cache_useful_share"] < values["continuous_useful_share"]
    assert values["dynamic_useful_share"] < values["static_compact_useful_share"]
    assert result.config["contiguous_places"] == 2


def test_every_stutter_column_has_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "stutter.json"
    assert stutter.main(arguments(out)) == 0
    values = values_of(read_result(out))
    for name in ("default", "unchunked", "chunk_64"):
        assert 0.0 < values[f"{name}_prefill_gap_p50"] <= values[f"{name}_prefill_gap_max"]
        assert values[f"{name}_prefill_speed"] > 0.0


def test_a_missing_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for benchmark, name in ((batching, "batching"), (stutter, "stutter")):
        out, missing = tmp_path / "out.json", str(tmp_path / "none")
        assert benchmark.main(["--short", "--checkpoint", missing, "--out", str(out)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"benchmarks.{name}: ")
        assert error.count("\n") == 1
        assert not out.exists()
