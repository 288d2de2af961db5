"""`headwater bench` on a tiny model: speeds, the table per operator, and a trace for viewers."""

import gzip
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from deployments.cli import main
from engine.checkpoints.store import checkpoint_path
from engine.config import EngineConfig
from engine.models.registry import read_model_config
from engine.native.support import compile_cache, reason_against
from engine.profile import OPERATORS
from engine.trace_times import STEP_LABEL
from tests.quickstart import HOME
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own modules warn, and warnings are errors here
    import ray.serve.schema  # noqa: F401

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BUSY_US = 1e6
CASE = ["--batch", "2", "--context", "20", "--steps", "6", "--prefill", "32"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With one model, and the compiled code that this machine has already."""
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path))
    folder = checkpoint_path(tmp_path, "tiny")
    folder.parent.mkdir(parents=True)
    write_checkpoint(make_tiny_model("llama"), folder)
    compiled = compile_cache(checkpoint_path(HOME, "any"))
    compiled.mkdir(parents=True, exist_ok=True)
    compile_cache(folder).symlink_to(compiled)
    return tmp_path


def operators_in(table: str) -> dict[str, tuple[float, float]]:
    """Milliseconds and per cent by operator."""
    rows = re.findall(r"^(\w[\w ]*?)\s+([\d.]+)\s+([\d.]+)%$", table, re.MULTILINE)
    return {name: (float(ms), float(share)) for name, ms, share in rows}


def events_in(path: Path) -> list[dict[str, Any]]:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    assert trace["metadata"]["summary"]["num_steps"] > 0
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


@pytest.mark.parametrize("compiled", ["require", "never"])
def test_speeds_and_where_the_time_goes(
    home: Path, capsys: pytest.CaptureFixture[str], compiled: str
) -> None:
    folder = checkpoint_path(home, "tiny")
    config = json.loads((folder / "config.json").read_text())
    reason = reason_against(EngineConfig(), read_model_config(config), compile_cache(folder))
    if compiled == "require" and reason is not None:
        pytest.skip(reason)
    trace = home / "trace.json.gz"
    assert main(["bench", "tiny", *CASE, "--compiled", compiled, "--profile", str(trace)]) == 0
    speeds, decode, prefill = capsys.readouterr().out.split("\n\n")
    assert len(re.findall(r"[1-9][\d.]* tokens/s", speeds)) == 2
    assert "6 steps" in decode
    for table in (decode, prefill):
        operators = operators_in(table)
        assert tuple(operators) == OPERATORS
        assert sum(share for _, share in operators.values()) == pytest.approx(100, abs=1)
        assert operators["matmul"][0] > 0
        assert operators["attention"][0] > 0
        assert operators["collectives"][0] == 0
    check_trace(events_in(trace), num_steps=6, has_phases=compiled == "require")
    check_trace(
        events_in(home / "trace.prefill.json.gz"), num_steps=1, has_phases=compiled == "require"
    )


def check_trace(events: list[dict[str, Any]], *, num_steps: int, has_phases: bool) -> None:
    ours = [event for event in events if event.get("cat") == "headwater"]
    steps = [event for event in ours if event["name"].startswith("step ")]
    assert len(steps) == num_steps
    for name in ("qkv", "attention", "mlp", "head"):
        phases = [event for event in ours if event["name"] == name]
        assert len(phases) == (num_steps if has_phases else 0)
        for phase, step in zip(phases, steps, strict=False):
            # Microseconds on a clock of many digits: the last one is rounded.
            assert step["ts"] - 1 <= phase["ts"]
            assert phase["ts"] + phase["dur"] <= step["ts"] + step["dur"] + 1
    # What torch saw lies in the steps by torch's clock, and by ours, give or take what a busy
    # machine does between reading the two.
    in_torch = [event for event in events if event["name"] == STEP_LABEL]
    assert len(in_torch) == num_steps
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    assert operators
    for event in operators:
        assert any(
            step["ts"] - 1 <= event["ts"] <= step["ts"] + step["dur"] + 1 for step in in_torch
        )
    assert steps[0]["ts"] == pytest.approx(in_torch[0]["ts"], abs=1, rel=0)
    for step, seen in zip(steps, in_torch, strict=True):
        assert step["ts"] == pytest.approx(seen["ts"], abs=BUSY_US, rel=0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["absent"], "headwater models pull"),
        (["tiny", "--context", "100000"], "lower --context"),
        (["tiny", "--batch", "5000"], "4096"),
        (["tiny", "--model", "tiny"], "--model is for a file"),
        (["tiny", "--prefill", "100000"], "lower --prefill."),
        (["tiny", "--profile", "/absent/trace"], "no folder /absent"),
        (["tiny", "--profile", "/proc/trace"], "/proc/trace cannot be written"),
        (["tiny", "--profile", "/tmp"], "/tmp cannot be written"),
        (["absent.yaml"], "cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["bench", *arguments]) == 1
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.out == ""


def test_a_file_says_how_the_engine_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "serve.yaml"
    model = """
- name: {name}
  route_prefix: null
  import_path: deployments.build:build_model
  args: {{name: {name}, source: "pypi:x==1", engine: {{dtype: float32, num_threads: 2, {more}}}}}
"""
    file.write_text("applications:" + model.format(name="tiny", more=""))
    assert main(["bench", str(file), *CASE]) == 0
    assert "tiny: cpu, float32, quantization none, 2 threads" in capsys.readouterr().out
    other = model.format(name="other", more="tensor_parallel_size: 2")
    file.write_text("applications:" + model.format(name="tiny", more="") + other)
    assert main(["bench", str(file)]) == 1
    assert "name one of tiny, other with --model" in capsys.readouterr().err
    assert main(["bench", str(file), "--model", "other"]) == 1
    assert "runs on 2 ranks" in capsys.readouterr().err
