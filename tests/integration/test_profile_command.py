"""`headwater profile` on a tiny model: a file with a table and a cost per precision."""

import warnings
from pathlib import Path

import pytest

from deployments.cli import main
from engine.checkpoints.store import checkpoint_path
from engine.performance_profile import PerformanceProfile
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own modules warn, and warnings are errors here
    import ray.serve.schema  # noqa: F401

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

GRID = ["--prefill", "8", "32", "--decodes", "1", "4", "--context", "16", "64", "--steps", "4"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path))
    folder = checkpoint_path(tmp_path, "tiny")
    folder.parent.mkdir(parents=True)
    write_checkpoint(make_tiny_model("llama"), folder)
    return tmp_path


def test_a_file_of_each_precision(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = home / "profile.json"
    more = ["--quantization", "none", "int8", "--dtype", "float32"]
    assert main(["profile", "tiny", "--out", str(out), *GRID, *more]) == 0
    printed = capsys.readouterr().out
    assert "tiny, float32, TP 1, 1 threads: a step takes" in printed
    profile = PerformanceProfile.read(out)
    assert profile.model == "tiny"
    assert profile.hardware
    assert set(profile.versions) == {"headwater", "torch", "python"}
    assert [engine.label for engine in profile.engines] == ["float32, TP 1", "int8, TP 1"]
    for engine in profile.engines:
        # 2 layers, key and value, 2 heads of 8 numbers of 4 bytes
        assert engine.kv_token_bytes == 2 * 2 * 2 * 8 * 4
        assert (engine.max_num_batched_tokens, engine.max_num_seqs) == (36, 4)
        assert len(engine.samples) > 12
        assert engine.cost.base_s > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["absent", "--out", "x.json"], "headwater models pull"),
        (["tiny", "--out", "/absent/x.json"], "no folder /absent"),
        (["tiny", "--out", "x.json", "--context", "100000"], "lower --decodes, --context"),
        (["absent.yaml", "--out", "x.json"], "cannot be read"),
        (["tiny", "--out", "x.json", "--decodes", "5000"], "4096"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["profile", *arguments]) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.out == ""
