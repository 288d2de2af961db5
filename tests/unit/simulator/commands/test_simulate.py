"""What a simulation cannot be made of is said in a line, before it starts."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.commands import simulate
from simulator.commands.simulate import BAD_INPUT
from simulator.outcome import Outcome

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(TRACE)
    return path


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    return simulate.run(parser.parse_args([str(argument) for argument in arguments]))


def test_help_names_what_a_trace_holds_and_its_units() -> None:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    for part in ("timestamp (arrival, in ms)", "output_length (in tokens)", "512 tokens"):
        assert part in text


def test_policies_stand_in_a_table(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = ["headwater", "round_robin", "headwater"]
    fleet = ["--replicas", 2, "--gpu", "h100-llama2-70b-tp8", "--price", 3]
    assert run("--trace", trace, *fleet, "--policy", *policies) == 0
    fleet_line, price, heading, *rows = capsys.readouterr().out.splitlines()
    assert "3 requests in 5 s; replicas: 2 of h100-llama2-70b-tp8" in fleet_line
    assert "$3 per device and hour (as given)" in price
    assert heading.split()[:2] == ["policy", "TTFT"]
    assert [row.split()[0] for row in rows] == ["headwater", "round_robin"]
    assert rows[0].split()[-1].startswith("$")


def test_the_routing_model_says_that_it_is_no_more(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--trace", trace, "--replicas", 1, "--gpu", "teaching", "--routing-only") == 0
    printed = capsys.readouterr().out
    assert "compare policies, not seconds" in printed
    assert "no measurement of any machine" in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--replicas", "0", "--gpu", "teaching"], "--replicas is 0"),
        (["--replicas", "1", "--gpu", "b300"], "choose one of h100-llama2-70b-tp8"),
        (["--replicas", "1", "--gpu", "teaching", "--policy", "best"], "choose one of round_robin"),
        (["--replicas", "1", "--gpu", "teaching", "--engine", "int8"], "--engine is for a profile"),
        (["--replicas", "1", "--gpu", "teaching", "--requests", "0"], "--requests is 0"),
        (["--replicas", "1", "--gpu", "teaching", "--speed", "0"], "take a factor > 0"),
        (["--replicas", "1", "--gpu", "teaching", "--spread-s", "-1"], "--spread-s is -1"),
        (["--replicas", "99999999", "--gpu", "teaching"], "--replicas is 99999999: take 1 to"),
        (["--replicas", "1", "--gpu", "teaching", "--stale-s", "-1"], "--stale-s is -1"),
        (["--replicas", "1", "--gpu", "teaching", "--stale-s", "nan"], "--stale-s is nan"),
        (["--replicas", "1", "--gpu", "teaching", "--speed", "nan"], "take a factor > 0"),
        (["--replicas", "1", "--gpu", "teaching", "--speed", "1e-320"], "takes inf s"),
        (["--replicas", "1", "--gpu", "teaching", "--spread-s", "1e300"], "see its times"),
        (["--replicas", "1", "--gpu", "teaching", "--kv-tokens", "3"], "blocks of"),
        (["--replicas", "1", "--gpu", "teaching", "--kv-tokens", "9" * 15], "take 1 to"),
        (["--replicas", "1", "--gpu", "teaching", "--kv-tokens", "0"], "--kv-tokens is 0"),
        (["--replicas", "1", "--gpu", "teaching", "--price", "-1"], "--price is -1"),
        (["--replicas", "1", "--gpu", "teaching", "--gateways", "0"], "--gateways is 0"),
        (["--replicas", "1", "--gpu", "teaching", "--png", "/absent/x.png"], "no folder /absent"),
        (["--replicas", "1", "--gpu", "teaching", "--json", "/proc/x.json"], "cannot be written"),
        (["--replicas", "1", "--gpu", "teaching", "--json", "/dev/full"], "No space left"),
        (["--replicas", "1", "--profile", "/absent/p.json"], "cannot be read"),
    ],
)
def test_bad_input_is_said_in_a_line(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run("--trace", trace, *arguments) == BAD_INPUT
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("absent.csv", None, "cannot be read"),
        ("trace.txt", "x", "neither a .jsonl nor a .csv nor a folder"),
        ("trace.csv", "a,b\n1,2\n", "row 1: no TIMESTAMP"),
        ("trace.jsonl", "{", "row 1"),
        ("trace.jsonl", "", "holds no requests"),
    ],
)
def test_a_trace_that_is_none_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str | None,
    complaint: str,
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert run("--trace", path, "--replicas", 1, "--gpu", "teaching") == BAD_INPUT
    assert complaint in capsys.readouterr().err


def test_a_profile_that_is_none_is_refused(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--trace", trace, "--replicas", 1, "--profile", trace) == BAD_INPUT
    assert "no performance profile" in capsys.readouterr().err


def test_nothing_that_is_read_is_written_over(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = ["--replicas", 1, "--gpu", "teaching"]
    assert run("--trace", trace, *fleet, "--json", trace) == BAD_INPUT
    assert "for something else, too" in capsys.readouterr().err
    assert trace.read_text() == TRACE


def test_figures_are_written(trace: Path) -> None:
    out = trace.with_name("figures.json")
    assert run("--trace", trace, "--replicas", 1, "--gpu", "tick", "--json", out) == 0
    [figures] = json.loads(out.read_text())
    assert (figures["label"], figures["num_requests"]) == ("headwater", 3)


def test_who_stops_a_later_policy_keeps_the_earlier_ones(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_one = simulate._outcome
    num_asked = 0

    def stop_the_second(*arguments: Any) -> Outcome:
        nonlocal num_asked
        num_asked += 1
        if num_asked > 1:
            raise KeyboardInterrupt
        return simulate_one(*arguments)

    monkeypatch.setattr(simulate, "_outcome", stop_the_second)
    fleet = ["--replicas", 1, "--gpu", "teaching", "--policy", "sglang", "headwater"]
    assert run("--trace", trace, *fleet) == 130
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("sglang")
    assert printed.err == "stopped\n"
