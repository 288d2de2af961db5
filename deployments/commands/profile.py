"""`headwater profile`: how long the steps of a model take on this machine, as a file that the
simulator plays fleets with.

Drives one engine after the other in this process, without HTTP or Ray.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.bench_target import (
    BenchTarget,
    add_engine_group,
    add_target_arguments,
    change_config,
    count,
    find_target,
    for_throughput,
)

if TYPE_CHECKING:
    from deployments.profile_run import ProfileGrid
    from engine.performance_profile import EngineProfile

BAD_INPUT = 2
HELP = "measure a model's step times on this machine, and write them as a performance profile"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the profile to write (JSON)"
    )
    grid = parser.add_argument_group("what is measured: all combinations that the KV pool holds")
    grid.add_argument(
        "--prefill", type=count, nargs="+", default=[16, 64, 256, 512], metavar="L",
        help="prompt tokens of a step",
    )  # fmt: skip
    grid.add_argument(
        "--decodes", type=count, nargs="+", default=[1, 4, 16, 32], metavar="N",
        help="sequences that decode in a step",
    )  # fmt: skip
    grid.add_argument(
        "--context", type=count, nargs="+", default=[128, 1024], metavar="M",
        help="tokens of each of those at the start",
    )  # fmt: skip
    grid.add_argument(
        "--steps", type=count, default=16, metavar="K", help="decode steps per combination"
    )
    grid.add_argument(
        "--prompts", type=count, default=3, metavar="R", help="prompts per combination"
    )
    engine = add_engine_group(parser)
    engine.add_argument(
        "--quantization", choices=["none", "int8", "int4"], nargs="+",
        help="what linear weights round to; each is measured",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from engine.errors import EngineError
    from engine.output_file import check_output

    engines: list[EngineProfile] = []
    try:
        check_output(args.out, [Path(args.target)])
        target = find_target(args)
        for changed in _each_precision(target, args):
            engines.append(_measure(changed, args))
            _write(target, engines, args.out)
    except (EngineError, KeyboardInterrupt) as error:
        is_stopped = isinstance(error, KeyboardInterrupt)
        print("stopped" if is_stopped else error, file=sys.stderr)
        if engines:
            labels = "; ".join(engine.label for engine in engines)
            print(f"{args.out} holds what was measured before: {labels}", file=sys.stderr)
        return 130 if is_stopped else BAD_INPUT
    print(f"wrote {args.out}")
    return 0


def _write(target: BenchTarget, engines: "list[EngineProfile]", path: Path) -> None:
    """All that is known so far: the next one may fail."""
    from engine.performance_profile import PerformanceProfile

    profile = PerformanceProfile(
        model=target.name,
        hardware=_hardware(target.config.device),
        engines=engines,
        versions=_versions(),
        measured_at=_now(),
    )
    profile.write(path)


def _each_precision(target: BenchTarget, args: argparse.Namespace) -> list[BenchTarget]:
    """All are checked before the first is measured."""
    grid = _grid(args)
    asked = {"num_threads": args.threads, "dtype": args.dtype, "device": args.device}
    targets = []
    for quantization in dict.fromkeys(args.quantization or [target.config.quantization]):
        changes = {
            **asked,
            "quantization": quantization,
            "max_num_batched_tokens": grid.max_step_tokens,
        }
        options = {"max_num_batched_tokens": "--prefill and --decodes, the longest of each"}
        config = change_config(target.config, changes, options)
        config = for_throughput(
            config, num_seqs=max(grid.decodes) + 1, num_seqs_option="--decodes, and a prompt beside"
        )
        targets.append(replace(target, config=config))
    return targets


def _grid(args: argparse.Namespace) -> "ProfileGrid":
    from deployments.profile_run import ProfileGrid

    return ProfileGrid(
        prefills=tuple(sorted(set(args.prefill))),
        decodes=tuple(sorted(set(args.decodes))),
        contexts=tuple(sorted(set(args.context))),
        num_steps=args.steps,
        num_prompts=args.prompts,
    )


def _measure(target: BenchTarget, args: argparse.Namespace) -> "EngineProfile":
    from deployments.offline_engine import OfflineEngine
    from deployments.profile_run import measure_grid
    from engine.performance_profile import EngineProfile
    from engine.step_cost_fit import fit_step_cost

    grid, config = _grid(args), target.config
    engine = OfflineEngine(target.name, target.checkpoint, config)
    try:
        samples = measure_grid(engine, grid, lambda line: print(line, file=sys.stderr))
        fit = fit_step_cost(samples)
        profile = EngineProfile(
            dtype=config.dtype,
            quantization=config.quantization,
            tensor_parallel_size=1,
            num_threads=config.num_threads,
            kv_token_bytes=engine.kv_token_bytes,
            kv_cache_bytes=config.kv_cache_bytes,
            max_model_len=engine.max_request_tokens,
            max_num_batched_tokens=grid.max_step_tokens,
            max_num_seqs=max(sample.num_decodes for sample in samples),
            cost=fit.cost,
            cost_error=fit.error,
            samples=samples,
        )
    finally:
        engine.close()
    print(_describe(target.name, profile), flush=True)
    return profile


def _describe(name: str, profile: "EngineProfile") -> str:
    cost = profile.cost
    return (
        f"{name}, {profile.label}, {profile.num_threads} threads: a step takes "
        f"{1000 * cost.base_s:.2f} ms"
        f" + {1e6 * cost.per_prefill_token_s:.1f} µs per prompt token"
        f" + {1e6 * cost.per_decode_s:.1f} µs per decode"
        f" + {1e9 * cost.per_context_token_s:.1f} ns per token of context"
        f" + {1e9 * cost.per_attended_token_s:.2f} ns per token that a prompt token attends to; "
        f"{len(profile.samples)} kinds of steps, mean error {profile.cost_error:.1%}"
    )


def _hardware(device: str) -> str:
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    from engine.native.processor import processor_name

    return processor_name()


def _versions() -> dict[str, str]:
    import platform
    from importlib import metadata

    from app.version import package_version

    return {
        "headwater": package_version(),
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
    }


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="seconds")
