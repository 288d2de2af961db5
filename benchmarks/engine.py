"""Offline benchmark of the engine: ``python -m benchmarks.engine --out FILE``.

Decode at context 128 and prefill, in tokens per second and milliseconds per step. The limit of a
case is the matrix work alone for the same shapes, measured right after it in the same run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.engine_cases import CASES, Case, EngineDriver, EngineFailure, Measurement
from benchmarks.matrix_work import MatrixWork
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.statistics import percentile
from deployments.environment import headwater_home
from engine.checkpoints.store import checkpoint_path
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.errors import EngineError
from engine.layers.linear import can_pack
from engine.models.registry import read_model_config
from engine.runner import create_runner

_MODEL = "smollm2-135m-instruct"
_SEED = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    cases = [case for case in CASES if not options.case or case.name in options.case]
    config = EngineConfig(
        dtype=options.dtype,
        num_threads=options.threads,
        weight_layout=options.weight_layout,
        prefix_caching=False,
    )
    try:
        driver = _create_driver(options.checkpoint, config)
        measured = {case: [driver.measure(case) for _ in range(options.runs)] for case in cases}
        BenchmarkResult.of_this_machine(
            name="engine",
            config={
                "runs": options.runs,
                "checkpoint": options.checkpoint.name,
                "engine": config.model_dump(mode="json"),
            },
            seed=_SEED,
            results=[result for case in cases for result in _summarize(case, measured[case])],
        ).write(options.out)
    except (EngineError, EngineFailure, OSError) as error:
        print(f"benchmarks.engine: {error}", file=sys.stderr)
        return 1
    return 0


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--runs", type=int, default=5, help="measurements of each case")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the engine")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--weight-layout", choices=["auto", "mapped", "packed"], default="auto")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=checkpoint_path(headwater_home(), _MODEL),
        help="the model's folder",
    )
    parser.add_argument(
        "--case", action="append", choices=[case.name for case in CASES], help="only this one"
    )
    options = parser.parse_args(argv)
    if options.runs < 1 or options.threads < 1:
        parser.error("--runs and --threads must be at least 1")
    return options


def _create_driver(checkpoint: Path, config: EngineConfig) -> EngineDriver:
    loaded = create_runner(EngineSpec(model="benchmark", checkpoint=checkpoint, config=config))
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    is_packed = config.weight_layout != "mapped" and can_pack(dtype)
    return EngineDriver(
        Engine(
            config,
            geometry=loaded.geometry,
            num_blocks=loaded.num_blocks,
            max_model_len=loaded.max_model_len,
            vocab_size=loaded.vocab_size,
            runner=loaded.runner,
        ),
        config,
        vocab_size=loaded.vocab_size,
        work=MatrixWork(
            read_model_config(loaded.checkpoint.config),
            dtype=dtype,
            layout="packed" if is_packed else "mapped",
        ),
        seed=_SEED,
    )


def _summarize(case: Case, runs: Sequence[Measurement]) -> tuple[CaseResult, CaseResult]:
    """Medians over the runs."""
    speed = CaseResult(
        case=case.name,
        value=percentile([run.tokens_per_s for run in runs], 50.0),
        unit="tok/s",
        limit=percentile([run.limit_tokens_per_s for run in runs], 50.0),
    )
    step_ms = percentile([run.step_s for run in runs], 50.0) * 1000
    print(f"{case.name:14} {speed.value:8.1f} tok/s {step_ms:8.2f} ms/step", end=" ")
    print(f"{speed.of_limit:5.0%} of the matrix work alone", flush=True)
    return speed, CaseResult(case=f"{case.name}_step", value=step_ms, unit="ms")


if __name__ == "__main__":
    sys.exit(main())
