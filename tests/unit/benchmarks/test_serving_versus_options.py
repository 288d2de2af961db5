"""The command line with peers: what it means, and what it refuses with one line and exit code 2."""

from __future__ import annotations

import pytest

from benchmarks.load import ClosedLoop
from benchmarks.serving_versus_options import Floor, names_a_peer, parse_versus_options

BASE = ["--peer", "vllm-server", "--out", "r.json"]


def test_a_peer_chooses_this_command_line() -> None:
    assert names_a_peer(BASE)
    assert names_a_peer(["--out", "r.json", "--peer=vllm-server"])
    assert not names_a_peer(["--url", "http://127.0.0.1", "--compare-name", "x", "--pairs", "5"])


def test_defaults_are_the_quickstart_in_five_rounds_of_both_concurrencies() -> None:
    options = parse_versus_options(["--peer", "ray-serve-llm", *BASE])
    assert options.peers == ("ray-serve-llm", "vllm-server")
    assert (options.num_rounds, options.concurrencies) == (5, (16, 1))
    assert options.file.name == "quickstart.yaml"
    assert options.url is None
    workload = options.workload
    assert (workload.prompt_words, workload.output_tokens) == (17, 64)
    assert workload.ignore_eos
    assert options.load(16) == ClosedLoop(16, 128, 600.0)


def test_floors_name_what_a_peer_is_known_to_give() -> None:
    options = parse_versus_options([*BASE, "--at-least", "vllm-server:16:255"])
    assert options.floors == (Floor("vllm-server", 16, 255.0),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peer", "another", "--out", "r.json"], "invalid choice"),
        (["--peer", "vllm-server"], "--out"),
        ([*BASE, "--peer", "vllm-server"], "--peer names one twice"),
        ([*BASE, "--concurrency", "4", "--concurrency", "4"], "--concurrency names one twice"),
        ([*BASE, "--concurrency", "0"], "--concurrency must lie between"),
        ([*BASE, "--rounds", "0"], "--rounds must lie between"),
        ([*BASE, "--requests-per-client", "0"], "--requests-per-client must lie between"),
        ([*BASE, "--threads", "0"], "--threads must lie between"),
        ([*BASE, "--start-timeout-s", "nan"], "--start-timeout-s must be a number above 0"),
        ([*BASE, "--output-tokens", "0"], "at least one prompt word and one output token"),
        ([*BASE, "--url", "http://10.1.2.3:8000"], "is not this machine"),
        ([*BASE, "--url", "http://127.0.0.1:8000", "--threads", "2"], "of a server that is star"),
        ([*BASE, "--at-least", "vllm-server:16"], "say PEER:CONCURRENCY:TOKENS_PER_S"),
        ([*BASE, "--at-least", "vllm-server:16:-1"], "above 0"),
        ([*BASE, "--at-least", "vllm-server:8:10"], "is not measured"),
        ([*BASE, "--at-least", "ray-serve-llm:16:10"], "is not measured"),
        ([*BASE, "--out", "/"], "is a folder"),
        ([*BASE, "--compare-url", "http://127.0.0.1"], "unrecognized arguments"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_versus_options(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
