"""What a replay of rates cannot be made of is said in a line, before it starts."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from simulator.commands import autoscale_replay
from simulator.commands.autoscale_replay import BAD_INPUT


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rates.npz"
    rate = 20 + 10 * np.sin(np.arange(3))
    np.savez(path, rate=rate[None], cv=np.full((1, 3), 1.5))
    return path


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    autoscale_replay.add_arguments(parser)
    return autoscale_replay.run(parser.parse_args([str(argument) for argument in arguments]))


def test_policies_and_leads_stand_in_a_table(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leads = ["--lead-s", 30, "--lead-s", 60]
    assert run("--trace", trace, *leads, "--policy", "headwater", "last_value") == 0
    note, heading, *rows = capsys.readouterr().out.splitlines()
    assert "requests in 0.0 days; a replica serves 4/s" in note
    assert heading.split()[:3] == ["policy", "lead", "late"]
    assert [row.split()[:2] for row in rows] == [
        ["headwater", "30"], ["last_value", "30"], ["headwater", "60"], ["last_value", "60"],
    ]  # fmt: skip


def test_results_are_written(trace: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("out.png", "out.html", "out.json")]
    outputs = ["--png", files[0], "--html", files[1], "--json", files[2]]
    policies = ["--policy", "last_value", "keda"]
    assert run("--trace", trace, "--lead-s", 30, "--frontier", *policies, *outputs) == 0
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()
    written = json.loads(files[2].read_text())
    assert [each["policy"] for each in written["runs"]] == ["last_value", "keda"]
    (clairvoyant,) = written["clairvoyants"]
    assert clairvoyant["point"]["bound"] <= clairvoyant["point"]["cost"] + 1e-9


def test_help_names_what_a_trace_holds() -> None:
    parser = argparse.ArgumentParser()
    autoscale_replay.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    assert "arrays rate (requests/s) and cv" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "best"], "choose one of headwater"),
        (["--replica-rps", "0"], "replica_rps is 0.0"),
        (["--replica-rps", "nan"], "replica_rps is nan"),
        (["--lead-s", "-1"], "lead_s is -1.0"),
        (["--tick-s", "0"], "tick_s is 0.0"),
        (["--parked-cost", "2"], "parked_cost is 2.0"),
        (["--days", "0"], "--days is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--max-replicas", "0"], "must be above 0"),
        (["--prefix", "x_"], "has no array x_rate, x_cv"),
        (["--json", "/nonexistent/out.json"], "there is no folder"),
    ],
)
def test_a_fault_is_named(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run("--trace", trace, *arguments) == BAD_INPUT
    assert complaint in capsys.readouterr().err
