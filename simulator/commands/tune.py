"""`headwater tune`: finds the settings of an engine that give the most tokens/s within limits on
what users see, writes them as a `serve run` file, and tries them on the real engine.

The search runs here, on measured step times. What needs the engine (`headwater check`,
`headwater replay`) runs as a process of its own: the simulator knows neither torch nor Serve, and
an engine that has just been measured shall not share its memory and threads with the next one.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simulator.trace_formats import FILES, TRACE_EPILOG

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from simulator.outcome import Outcome
    from simulator.replica_kind import ReplicaKind
    from simulator.serve_yaml import ServeYaml
    from simulator.tuning import Found, Search, Slo
    from simulator.workload import Workload

HELP = "find the engine settings with the most tokens/s within limits on TTFT and TPOT"
BAD_INPUT = 2
_REPLAY_TIMEOUT_S = 1800.0
_MOST_REQUESTS = 1_000_000
_MOST_TOKENS = 10_000_000
"""Of a prompt or an answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = TRACE_EPILOG
    parser.add_argument("base", type=Path, metavar="FILE", help="a `serve run` .yaml file")
    parser.add_argument("--model", metavar="NAME", help="which one of a file with several")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="where the tuned file goes"
    )
    parser.add_argument(
        "--slo", action="append", required=True, metavar="LIMIT",
        help="ttft_p95_ms=700 or tpot_p99_ms=40: mean, p50, p90, p95 or p99; may stand repeatedly",
    )  # fmt: skip
    parser.add_argument(
        "--margin", type=float, default=0.1, metavar="X",
        help="share of each limit that is left, since a simulation errs",
    )  # fmt: skip
    hardware = parser.add_mutually_exclusive_group(required=True)
    hardware.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="what `headwater profile` measured: all of its engines are compared",
    )
    hardware.add_argument("--gpu", nargs="+", metavar="NAME", help="presets that are compared")
    space = parser.add_argument_group(
        "what is tried", "by default powers of two up to what is known of the hardware"
    )
    space.add_argument("--batch", type=int, nargs="+", default=[], metavar="N", help="max_num_seqs")
    space.add_argument(
        "--step-tokens", type=int, nargs="+", default=[], metavar="N",
        help="max_num_batched_tokens",
    )  # fmt: skip
    load = parser.add_argument_group("requests")
    load.add_argument(
        "--trace", type=Path, metavar="FILE",
        help=f"take lengths and arrivals of {FILES}, see below, in place of the means",
    )  # fmt: skip
    load.add_argument(
        "--prompt-tokens", type=int, default=512, metavar="N", help="mean of a prompt"
    )
    load.add_argument(
        "--answer-tokens", type=int, default=128, metavar="N", help="mean of an answer"
    )
    load.add_argument(
        "--requests", type=int, default=200, metavar="N", help="so many, or a trace's first"
    )
    verify = parser.add_argument_group("trial on the real engine of this machine")
    verify.add_argument("--no-verify", action="store_true", help="leave it out")
    verify.add_argument(
        "--verify-requests", type=int, default=48, metavar="N", help="so many of the requests"
    )


class _Task(NamedTuple):
    base: "ServeYaml"
    slos: "list[Slo]"
    kinds: "list[ReplicaKind]"
    workload_at: "Callable[[float], Workload]"


def run(args: argparse.Namespace) -> int:
    from engine.errors import EngineError
    from simulator.errors import SimulationError

    try:
        task = _task(args)
        return _tune(task, args)
    except (SimulationError, EngineError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _task(args: argparse.Namespace) -> _Task:
    from engine.output_file import check_output
    from simulator.serve_yaml import read_serve_yaml
    from simulator.tuning import TuningError, parse_slo

    slos = [parse_slo(text) for text in args.slo]
    if not 0 <= args.margin < 1:
        raise TuningError(f"--margin is {args.margin}: it is a share, from 0 to below 1")
    if min([1, *args.batch, *args.step_tokens]) < 1:
        raise TuningError("--batch and --step-tokens are counts of 1 and more")
    for counts, most in (
        ((args.requests, args.verify_requests), _MOST_REQUESTS),
        ((args.prompt_tokens, args.answer_tokens), _MOST_TOKENS),
    ):
        if not 1 <= min(counts) <= max(counts) <= most:
            raise TuningError(
                f"requests are 1 to {_MOST_REQUESTS:,}, and the tokens of their prompts and "
                f"answers 1 to {_MOST_TOKENS:,}"
            )
    inputs = [args.base, args.profile, args.trace]
    check_output(args.out, [path for path in inputs if path is not None])
    base = read_serve_yaml(args.base, args.model)
    return _Task(base, slos, _kinds(args, base.model), _workload(args, base))


def _kinds(args: argparse.Namespace, model: str) -> "list[ReplicaKind]":
    from engine.performance_profile import PerformanceProfile
    from simulator.presets import find_preset
    from simulator.replica_kind import kinds_of_profile
    from simulator.tuning import TuningError

    if args.gpu is not None:
        return [find_preset(name) for name in dict.fromkeys(args.gpu)]
    profile = PerformanceProfile.read(args.profile)
    if profile.model != model:
        raise TuningError(
            f"{args.profile} is of {profile.model}, and {args.base} serves {model}: profile that "
            "one, or name another with --model"
        )
    return kinds_of_profile(profile)


def _workload(args: argparse.Namespace, base: "ServeYaml") -> "Callable[[float], Workload]":
    """The same requests at any rate; no two prompts begin alike, as on the engine later."""
    from dataclasses import replace

    from simulator.commands.trace_argument import read_trace
    from simulator.synthetic import poisson

    if args.trace is None:
        return lambda requests_per_s: poisson(
            num_requests=args.requests,
            requests_per_s=requests_per_s,
            num_prompt_tokens=args.prompt_tokens,
            num_answer_tokens=args.answer_tokens,
            block_size_tokens=base.engine.block_size_tokens,
        )
    trace = read_trace(args.trace).first(args.requests)
    bare = [replace(r, block_keys=(), session=None, think_s=None) for r in trace.requests]
    trace = replace(trace, requests=tuple(bare))
    rate = len(trace) / max(trace.duration_s, 1e-3)
    return lambda requests_per_s: trace.accelerated(requests_per_s / rate)


def _tune(task: _Task, args: argparse.Namespace) -> int:
    from engine.output_file import write_output
    from simulator.tuning import LimitsMissedError, Search, TuningError, settings_of

    search = Search(task.base.engine, task.slos, task.workload_at, margin=args.margin)
    settings = settings_of(task.kinds, args.batch, args.step_tokens)
    print(f"{task.base.model}: {len(settings)} settings", flush=True)
    try:
        found = search.run(settings)
    except LimitsMissedError as error:
        raise TuningError(f"{error}. {_advice(args)}") from error
    changes = search.engine_settings(found.setting)
    described = f"{_describe(task, found)}\n{_describe_changes(task.base.engine, changes)}"
    print(described)
    remark = f"{args.base}, tuned for {' '.join(args.slo)} by simulation:\n{described}"
    write_output(args.out, task.base.with_engine(changes, remark=remark).encode())
    print(f"wrote {args.out}", flush=True)
    checked = _headwater("check", str(args.out))
    if checked.returncode != 0:
        print("it can't be served on this machine:", file=sys.stderr)
        print(checked.stderr.strip(), file=sys.stderr)
        # A preset is of other hardware than this machine's.
        return 0 if args.gpu else 1
    return 0 if args.no_verify or _verify(task, search, found, args) else 1


def _describe(task: _Task, found: "Found") -> str:
    figures = ", ".join(f"{s.name} {s.measured_ms(found.outcome):.4g}" for s in task.slos)
    return (
        f"{found.setting}: {found.tokens_per_s:.1f} tokens/s per device at "
        f"{found.requests_per_s:.3g} requests/s with {figures}"
    )


def _describe_changes(engine: "EngineConfig", changes: Mapping[str, str | int | None]) -> str:
    """What the file says otherwise from now on."""
    parts = [
        f"{name} {'null' if value is None else value} (was {getattr(engine, name)})"
        for name, value in changes.items()
        if value != getattr(engine, name)
    ]
    text = f"engine settings: {', '.join(parts) or 'as they were'}"
    if engine.max_step_stretch is not None and changes["max_step_stretch"] is None:
        text += (
            "\nmax_step_stretch is null since the limits are kept without it: a prompt may fill a "
            "step up to max_num_batched_tokens"
        )
    return text


def _advice(args: argparse.Namespace) -> str:
    """What can be asked for otherwise where a request that is alone misses a limit."""
    ways = ["loosen --slo"]
    if args.margin:
        ways.append(f"lower --margin ({args.margin:g} of each limit is left)")
    if args.trace is None:
        ways.append(f"lower --prompt-tokens (now {args.prompt_tokens})")
    else:
        ways.append("take a --trace of shorter prompts")
    if args.batch or args.step_tokens:
        ways.append("try other --batch and --step-tokens")
    hardware = "--profile" if args.gpu is None else "--gpu"
    return f"What may help: {', '.join(ways)}, or take a {hardware} that is faster"


def _verify(task: _Task, search: "Search", found: "Found", args: argparse.Namespace) -> bool:
    """Play the same requests at the rate that was found on the engine, with the old settings and
    the new ones. False: the new ones break a limit there, or could not be tried."""
    workload = task.workload_at(found.requests_per_s).first(args.verify_requests)
    print(f"{len(workload)} requests at {found.requests_per_s:.3g} requests/s:")
    print(f"tuned, simulated: {_figures(task, search.play_these(found.setting, workload))}")
    is_kept = False
    for label, file in (("before", args.base), ("tuned", args.out)):
        outcome = _replay(workload, file, task.base.model)
        if isinstance(outcome, str):
            print(f"{label}, on the engine: not tried: {outcome}", flush=True)
            is_kept = False
            continue
        is_kept = all(s.measured_ms(outcome) <= s.limit_ms for s in task.slos)
        verdict = "within the limits" if is_kept else "beyond a limit"
        print(f"{label}, on the engine: {_figures(task, outcome)}: {verdict}", flush=True)
    return is_kept


def _figures(task: _Task, outcome: "Outcome") -> str:
    figures = ", ".join(f"{s.name} {s.measured_ms(outcome):.4g}" for s in task.slos)
    return f"{outcome.answer_tokens_per_s:.1f} tokens/s, {figures}"


def _replay(workload: "Workload", file: Path, model: str) -> "Outcome | str":
    """On the real engine with the settings of ``file``; or why not."""
    from engine.replay_file import ReplayFileError, ReplayRequest, read_answers, write_rows
    from simulator.outcome import Outcome, RequestOutcome

    with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
        requests, answers = Path(folder, "requests.json"), Path(folder, "answers.json")
        rows = [
            ReplayRequest(r.arrival_s, r.num_prompt_tokens, r.num_answer_tokens)
            for r in workload.requests
        ]
        write_rows(requests, rows)
        command = ["replay", str(file), "--model", model, "--requests", str(requests)]
        done = _headwater(*command, "--out", str(answers))
        if done.returncode != 0:
            return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it failed"
        try:
            found = read_answers(answers)
        except ReplayFileError as error:
            return str(error)
    return Outcome(
        [
            RequestOutcome(
                "", "engine", row.request.arrival_s, row.first_token_s, row.end_s,
                row.request.num_prompt_tokens, row.request.num_answer_tokens,
            )
            for row in found
        ]
    )  # fmt: skip


def _headwater(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deployments.cli", *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_REPLAY_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        reason = f"took longer than {_REPLAY_TIMEOUT_S:.0f} s"
        return subprocess.CompletedProcess(command, 1, "", reason)
