"""The command line of the engine benchmark."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benchmarks.engine_cases import CASES
from benchmarks.engine_peers import PEER_NAMES
from benchmarks.peer_environment import peers_home
from deployments.environment import headwater_home
from engine.checkpoints.store import checkpoint_path
from engine.config import EngineConfig

MODEL = "smollm2-135m-instruct"
QUANTIZED: tuple[Literal["int8", "int4"], ...] = ("int8", "int4")
QUANTIZED_CASES = tuple(f"decode_bs1_{name}" for name in QUANTIZED)
STEP_CASES = ("python_per_step", "step_jitter")
ALL_CASES = (*(case.name for case in CASES), *QUANTIZED_CASES, *STEP_CASES)
DEFAULT_JITTER_STEPS = 10_000


def parse_options(argv: Sequence[str], description: str | None) -> argparse.Namespace:
    """Exits with 2 and a line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=description)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument(
        "--peer", action="append", choices=PEER_NAMES, default=[], help="compare to it, in pairs"
    )
    parser.add_argument("--case", action="append", choices=ALL_CASES, help="only this one")
    parser.add_argument("--runs", type=int, default=5, help="measurements, or pairs, of each case")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each engine")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--quantization", choices=["none", *QUANTIZED], default="none")
    parser.add_argument("--weight-layout", choices=["auto", "mapped", "packed"], default="auto")
    parser.add_argument(
        "--jitter-steps", type=int, default=DEFAULT_JITTER_STEPS, help="steps of step_jitter"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=checkpoint_path(headwater_home(), MODEL),
        help="the model's folder",
    )
    parser.add_argument(
        "--peer-home",
        type=Path,
        default=peers_home(headwater_home()),
        help="where environments of peers are made and kept",
    )
    parser.add_argument(
        "--peer-budget",
        type=int,
        action="append",
        help="max_num_batched_tokens to try for vLLM (default: 2048 and 4096)",
    )
    options = parser.parse_args(argv)
    if min(options.runs, options.threads, options.jitter_steps) < 1:
        parser.error("--runs, --threads and --jitter-steps must be at least 1")
    if options.peer_budget and min(options.peer_budget) < 1:
        parser.error("--peer-budget must be at least 1")
    options.peer_budget = options.peer_budget or [2048, 4096]
    options.peer = list(dict.fromkeys(options.peer))
    _settle_cases(options, parser)
    return options


def engine_config(
    options: argparse.Namespace, quantization: Literal["none", "int8", "int4"]
) -> EngineConfig:
    """Of our engine; what isn't asked for is as users have it."""
    return EngineConfig(
        dtype=options.dtype,
        num_threads=options.threads,
        weight_layout=options.weight_layout,
        quantization=quantization,
        prefix_caching=False,
    )


def _settle_cases(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    asked = options.case or [
        name for name in ALL_CASES if options.quantization == "none" or name not in QUANTIZED_CASES
    ]
    is_quantized = any(name in QUANTIZED_CASES for name in asked)
    if options.quantization != "none" and is_quantized:
        parser.error("the int8 and int4 cases compare to an engine that isn't quantized")
    options.case = list(dict.fromkeys(asked))
