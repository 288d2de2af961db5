"""`headwater bench`: how fast a model runs on this machine, and where its time goes.

Drives one engine in this process, without HTTP or Ray.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deployments.bench_run import BenchCase, Speed
    from engine.config import EngineConfig
    from engine.profile import Profile

HELP = "measure a model's decode and prefill on this machine, and where their time goes"
MAX_STEPS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="MODEL|FILE", help="a model on this machine, or a `serve run` .yaml file"
    )
    parser.add_argument("--model", metavar="NAME", help="which one of a file with several")
    case = parser.add_argument_group("what is run")
    case.add_argument("--batch", type=_count, default=16, metavar="N", help="sequences that decode")
    case.add_argument(
        "--context", type=_count, default=128, metavar="M", help="tokens of each at the start"
    )
    case.add_argument("--steps", type=_steps, default=64, metavar="K", help="decode steps")
    case.add_argument(
        "--prefill", type=_count, default=512, metavar="L", help="tokens of the prompt prefilled"
    )
    engine = parser.add_argument_group("how the engine runs it, in place of what the file says")
    engine.add_argument("--threads", type=_count, metavar="T", help="CPU threads")
    engine.add_argument("--dtype", choices=["bfloat16", "float32"])
    engine.add_argument("--quantization", choices=["none", "int8", "int4"])
    engine.add_argument("--compiled", choices=["auto", "never", "require"])
    engine.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument(
        "--profile", type=Path, metavar="FILE",
        help="show the time per operator and write a Chrome trace of the decode (JSON in gzip) to "
        "FILE, one of the prefill beside it",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from engine.errors import EngineError

    if args.profile is not None and not args.profile.parent.is_dir():
        print(f"there is no folder {args.profile.parent} to write the trace to", file=sys.stderr)
        return 1
    try:
        target = _find(args)
        if target is None:
            return 1
        _bench(target, args)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename or args.profile} cannot be written: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


@dataclass(frozen=True, slots=True)
class _Target:
    name: str
    checkpoint: Path
    config: "EngineConfig"


def _find(args: argparse.Namespace) -> _Target | None:
    """None if that is not possible, which has been said."""
    from deployments.environment import headwater_home
    from engine.checkpoints.store import checkpoint_path
    from engine.config import EngineConfig

    name, config = args.target, EngineConfig()
    if name.endswith((".yaml", ".yml")):
        from deployments.serve_file import read_serve_file

        file = read_serve_file(Path(name))
        for fault in file.faults:
            print(file.describe(fault), file=sys.stderr)
        if file.faults:
            return None
        models = {model.args.name: model.args for model in file.models}
        chosen = args.model or (next(iter(models)) if len(models) == 1 else None)
        if chosen not in models:
            what = f"no model {chosen!r}" if chosen else f"{len(models)} models"
            listed = ", ".join(models) or "none"
            print(f"{name} has {what}: name one of {listed} with --model", file=sys.stderr)
            return None
        name, config = chosen, models[chosen].engine
    elif args.model is not None:
        print("--model is for a file with several models", file=sys.stderr)
        return None
    if config.tensor_parallel_size > 1:
        print(
            f"{name} runs on {config.tensor_parallel_size} ranks, and bench drives one: measure "
            "the served model with POST /debug/profile",
            file=sys.stderr,
        )
        return None
    return _Target(name, checkpoint_path(headwater_home(), name), _with_options(config, args))


def _with_options(config: "EngineConfig", args: argparse.Namespace) -> "EngineConfig":
    from pydantic import ValidationError

    from engine.config import EngineConfig
    from engine.errors import EngineConfigError

    asked = {
        "num_threads": args.threads,
        "dtype": args.dtype,
        "quantization": args.quantization,
        "compiled": args.compiled,
        "device": args.device,
    }
    changed: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    changed["prefix_caching"] = False  # every prompt is computed
    # Nobody waits for a stream: prompts fill their steps.
    changed["max_step_stretch"] = changed["tpot_target_s"] = None
    changed["max_num_seqs"] = max(config.max_num_seqs, args.batch)
    try:
        return EngineConfig.model_validate({**config.model_dump(), **changed})
    except ValidationError as error:
        raise EngineConfigError(error.errors()[0]["msg"]) from error


def _bench(target: _Target, args: argparse.Namespace) -> None:
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


def _describe(target: _Target, case: "BenchCase", decode: "Speed", prefill: "Speed") -> str:
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
    from engine.profile import render_profile

    print(f"\n{what}: {render_profile(profile.summary)}", flush=True)
    if profile.trace is not None:
        path.write_bytes(profile.trace)
        print(f"trace: {path} (open it in https://ui.perfetto.dev or chrome://tracing)", flush=True)


def _beside(path: Path) -> Path:
    """``decode.json.gz`` and ``decode.prefill.json.gz``."""
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{stem}.prefill{dot}{suffixes}")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {2**20}")
    return int(text)


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_STEPS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps from 1 to {MAX_STEPS}")
    return int(text)
