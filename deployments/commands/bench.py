"""`headwater bench`: how fast a model runs on this machine, and where its time goes.

Drives one engine in this process, without HTTP or Ray.
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
    from deployments.bench_run import BenchCase, Speed
    from engine.config import EngineConfig
    from engine.profile import Profile

HELP = "measure a model's decode and prefill on this machine, and where their time goes"
MAX_STEPS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    case = parser.add_argument_group("what is run")
    case.add_argument("--batch", type=count, default=16, metavar="N", help="sequences that decode")
    case.add_argument(
        "--context", type=count, default=128, metavar="M", help="tokens of each at the start"
    )
    case.add_argument("--steps", type=_steps, default=64, metavar="K", help="decode steps")
    case.add_argument(
        "--prefill", type=count, default=512, metavar="L", help="tokens of the prompt prefilled"
    )
    engine = add_engine_group(parser)
    engine.add_argument(
        "--quantization", choices=["none", "int8", "int4"], help="what linear weights round to"
    )
    engine.add_argument(
        "--compiled", choices=["auto", "never", "require"],
        help="the compiled step of CPUs: where it can run, never, or not without",
    )  # fmt: skip
    parser.add_argument(
        "--profile", type=Path, metavar="FILE",
        help="show the time per operator and write a Chrome trace of the decode (JSON in gzip) to "
        "FILE, one of the prefill beside it",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from engine.errors import EngineError
    from engine.output_file import check_output

    try:
        if args.profile is not None:
            check_output(args.profile)
            check_output(_beside(args.profile))
        target = find_target(args)
        _bench(replace(target, config=_with_options(target.config, args)), args)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def _with_options(config: "EngineConfig", args: argparse.Namespace) -> "EngineConfig":
    asked = {
        "num_threads": args.threads,
        "dtype": args.dtype,
        "quantization": args.quantization,
        "compiled": args.compiled,
        "device": args.device,
    }
    changed = change_config(config, asked)
    return for_throughput(changed, num_seqs=args.batch, num_seqs_option="--batch")


def _bench(target: BenchTarget, args: argparse.Namespace) -> None:
    from deployments.bench_run import (
        BenchCase,
        check_case,
        measure_decode,
        measure_prefill,
        record_decode,
        record_prefill,
    )
    from deployments.offline_engine import OfflineEngine

    case = BenchCase(args.batch, args.context, args.steps, args.prefill)
    engine = OfflineEngine(target.name, target.checkpoint, target.config)
    try:
        check_case(case, engine)
        measure_prefill(engine, case)  # touches memory, sets up kernels and threads
        prefill = measure_prefill(engine, case)
        decode = measure_decode(engine, case)
        print(_describe(target, case, decode, prefill), flush=True)
        if args.profile is not None:
            _report("decode", record_decode(engine, case), args.profile)
            _report("prefill", record_prefill(engine, case), _beside(args.profile))
    finally:
        engine.close()


def _describe(target: BenchTarget, case: "BenchCase", decode: "Speed", prefill: "Speed") -> str:
    config = target.config
    how = f"{config.device}, {config.dtype}, quantization {config.quantization}"
    decoded = f"{case.batch} sequences at context {case.context}"
    lines = [
        f"{target.name}: {how}, {config.num_threads} threads",
        f"decode  {_rate(decode)}  ({decoded}, {decode.time_s * 1000:.2f} ms per step)",
        f"prefill {_rate(prefill)}  ({case.prefill} tokens in {prefill.time_s * 1000:.1f} ms)",
    ]
    return "\n".join(lines)


def _rate(speed: "Speed") -> str:
    return f"{speed.tokens_per_s:>10.1f} tokens/s"


def _report(what: str, profile: "Profile", path: Path) -> None:
    from engine.output_file import write_output
    from engine.profile import render_profile

    print(f"\n{what}: {render_profile(profile.summary)}", flush=True)
    if profile.trace is not None:
        write_output(path, profile.trace)
        print(f"trace: {path} (open it in https://ui.perfetto.dev or chrome://tracing)", flush=True)


def _beside(path: Path) -> Path:
    """``decode.json.gz`` and ``decode.prefill.json.gz``."""
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{stem}.prefill{dot}{suffixes}")


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_STEPS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps from 1 to {MAX_STEPS}")
    return int(text)
