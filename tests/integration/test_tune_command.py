"""`headwater tune` from a profile to a file that can be served, tried on a real (tiny) engine."""

import re
import warnings
from pathlib import Path

import pytest
import yaml

from deployments.cli import main
from engine.checkpoints.store import checkpoint_path
from engine.replay_file import ReplayRequest, read_answers, write_rows
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own modules warn, and warnings are errors here
    import ray.serve.schema  # noqa: F401

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

FILE = """
applications:
  - name: gateway
    route_prefix: /
    import_path: deployments.build:build_gateway
    args: {num_replicas: 1}
    deployments: [{name: Gateway, user_config: {models: [{name: tiny}]}}]
  - name: tiny
    route_prefix: null
    import_path: deployments.build:build_model
    args:
      {name: tiny, source: "pypi:x==1", num_cpus: 0, engine: {dtype: float32, max_num_seqs: 1}}
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path))
    folder = checkpoint_path(tmp_path, "tiny")
    folder.parent.mkdir(parents=True)
    write_checkpoint(make_tiny_model("llama"), folder)
    path = tmp_path / "serve.yaml"
    path.write_text(FILE)
    return path


def test_a_profile_becomes_a_file_that_is_tried(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, out = base.with_name("profile.json"), base.with_name("tuned.yaml")
    grid = ["--prefill", "16", "64", "--decodes", "1", "4", "--context", "16", "--steps", "4"]
    assert main(["profile", str(base), "--out", str(profile), *grid]) == 0
    slos = ["--slo", "ttft_p95_ms=30000", "--slo", "tpot_p99_ms=5000"]
    load = ["--prompt-tokens", "20", "--answer-tokens", "8", "--requests", "20"]
    space = ["--batch", "1", "4", "--step-tokens", "64", "--verify-requests", "6"]
    capsys.readouterr()
    arguments = ["tune", str(base), "--profile", str(profile), "--out", str(out)]
    assert main([*arguments, *slos, *load, *space]) == 0
    printed = capsys.readouterr().out
    assert "tiny: 2 settings" in printed
    assert f"wrote {out}" in printed
    for text in (printed, out.read_text()):
        assert "max_step_stretch null (was 2.0)" in text
    # Both ran on the engine; how fast is the machine's affair.
    for label in ("tuned, simulated", "before, on the engine", "tuned, on the engine"):
        pattern = rf"{label}: [\d.]+ tokens/s, ttft_p95_ms [\d.e+]+, tpot_p99_ms [\d.e+]+"
        assert re.search(pattern, printed)
    engine = yaml.safe_load(out.read_text())["applications"][1]["args"]["engine"]
    assert engine["max_num_seqs"] in (1, 4)
    assert engine["max_num_batched_tokens"] == 64
    assert main(["check", str(out)]) == 0


def test_a_replay_stamps_every_answer(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests, answers = base.with_name("requests.json"), base.with_name("answers.json")
    write_rows(requests, [ReplayRequest(0.05 * n, 10 + n, 3) for n in range(4)])
    command = ["replay", str(base), "--requests", str(requests), "--out", str(answers)]
    assert main(command) == 0
    assert "answered 4 requests" in capsys.readouterr().out
    found = read_answers(answers)
    assert len(found) == 4
    for answer in found:
        assert answer.request.arrival_s < answer.first_token_s < answer.end_s
    requests.write_text("[]")
    assert main(command) == 2
    assert "holds no requests" in capsys.readouterr().err


def test_an_impossible_limit_exits_with_2(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = base.with_name("tuned.yaml")
    base.write_text(FILE.replace("max_num_seqs: 1", "kv_cache_bytes: 4000000000"))
    arguments = ["tune", str(base), "--gpu", "h100-llama2-70b-tp8", "--out", str(out)]
    assert main([*arguments, "--slo", "tpot_p99_ms=1", "--requests", "5", "--batch", "4"]) == 2
    printed = capsys.readouterr()
    assert "tpot_p99_ms is" in printed.err
    assert "over 0.9" in printed.err
    assert not out.exists()
