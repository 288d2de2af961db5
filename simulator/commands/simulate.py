"""`headwater simulate`: replays a trace on a simulated fleet, one routing policy after the other,
and shows what users would have seen and what it would have cost.

Needs neither a model nor a GPU.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.trace_formats import FILES, TRACE_EPILOG

if TYPE_CHECKING:
    from simulator.outcome import Outcome
    from simulator.replica_kind import ReplicaKind
    from simulator.summary import Run, Summary
    from simulator.workload import Workload

HELP = "replay a trace on a simulated fleet and compare routing policies"
BAD_INPUT = 2
_MOST_REPLICAS = 10_000
_MOST_GATEWAYS = 1000
_MOST_KV_TOKENS = 100_000_000
"""Of a replica: all the memory of a node of 8 GPUs holds fewer."""
_LONGEST_TRACE_S = 1e9
"""Of longer times doubles don't tell microseconds apart."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = TRACE_EPILOG
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--trace", type=Path, required=True, metavar="FILE", help=f"{FILES}: see below"
    )
    traffic.add_argument(
        "--requests", type=int, metavar="N", help="only the first N, in place of all"
    )
    traffic.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="arrivals X times as dense"
    )
    traffic.add_argument(
        "--spread-s", type=float, default=0.0, metavar="S",
        help="each arrival at random within S seconds, for a trace with a coarse clock",
    )  # fmt: skip
    traffic.add_argument(
        "--sessions-per-s", type=float, default=0.1, metavar="X",
        help="of a folder of sessions: how many begin per second",
    )  # fmt: skip
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--policy", nargs="+", default=["headwater"], metavar="NAME",
        help="routing policies; an unknown name lists them",
    )  # fmt: skip
    fleet.add_argument(
        "--replicas", type=int, required=True, metavar="N", help="how many, all alike"
    )
    hardware = fleet.add_mutually_exclusive_group(required=True)
    hardware.add_argument(
        "--gpu", metavar="NAME", help="a preset, such as h100-llama2-70b-tp8; an unknown lists them"
    )
    hardware.add_argument(
        "--profile", type=Path, metavar="FILE", help="what `headwater profile` measured"
    )
    fleet.add_argument(
        "--engine",
        metavar="LABEL",
        help="which engine of a --profile that has several; an unknown one lists them",
    )
    fleet.add_argument(
        "--kv-tokens",
        type=int,
        metavar="N",
        help="KV of a replica, in tokens, in place of what --gpu or --profile has",
    )
    fleet.add_argument(
        "--gateways", type=int, default=1, metavar="N", help="how many share the requests"
    )
    fleet.add_argument(
        "--stale-s", type=float, default=0.0, metavar="S",
        help="gateways hear of load and caches so much later",
    )  # fmt: skip
    fleet.add_argument(
        "--routing-only", action="store_true",
        help="replicas without steps and batches: much faster; compare policies, not seconds",
    )  # fmt: skip
    fleet.add_argument(
        "--price", type=float, metavar="USD",
        help="per device and hour, in place of a preset's own; a --profile has none",
    )  # fmt: skip
    results = parser.add_argument_group("results, beside the table")
    results.add_argument("--png", type=Path, metavar="FILE", help="plots")
    results.add_argument("--html", type=Path, metavar="FILE", help="table and plots in one page")
    results.add_argument("--json", type=Path, metavar="FILE", help="all figures")


@dataclass(frozen=True, slots=True)
class _Case:
    workload: "Workload"
    kind: "ReplicaKind"
    num_kv_tokens: int
    price: float
    price_note: str


def run(args: argparse.Namespace) -> int:
    from engine.errors import EngineError
    from simulator.errors import SimulationError

    try:
        case = _case(args)
        _simulate(case, args)
    except (SimulationError, EngineError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def _case(args: argparse.Namespace) -> _Case:
    """All that can be wrong is found before the first simulation."""
    from simulator.errors import FleetSpecError
    from simulator.plots import check_plots
    from simulator.policies.registry import create_policy
    from simulator.presets import PRICE_SOURCE, price_per_hour

    _check_count("--replicas", args.replicas, _MOST_REPLICAS)
    _check_count("--gateways", args.gateways, _MOST_GATEWAYS)
    if not 0 <= args.stale_s < float("inf"):
        raise FleetSpecError(f"--stale-s is {args.stale_s}: take 0 s or more")
    if args.price is not None and not 0 <= args.price < float("inf"):
        raise FleetSpecError(f"--price is {args.price}: take 0 or more")
    for name in args.policy:
        try:
            create_policy(name)
        except ValueError as error:
            raise FleetSpecError(str(error)) from error
    _check_outputs(args)
    if args.png or args.html:
        check_plots()
    kind = _kind(args)
    price, note = args.price or 0.0, "as given"
    if args.price is None and args.gpu is not None:
        price, note = price_per_hour(args.gpu), PRICE_SOURCE
    workload = _workload(args)
    num_kv_tokens = kind.num_kv_tokens if args.kv_tokens is None else args.kv_tokens
    _check_count("--kv-tokens", num_kv_tokens, _MOST_KV_TOKENS)
    if num_kv_tokens < workload.block_size_tokens:
        raise FleetSpecError(
            f"a replica has {num_kv_tokens} tokens of KV, and blocks of {args.trace} have "
            f"{workload.block_size_tokens}: give it more with --kv-tokens"
        )
    return _Case(workload, kind, num_kv_tokens, price, note)


def _check_count(option: str, value: int, most: int) -> None:
    from simulator.errors import FleetSpecError

    if not 1 <= value <= most:
        raise FleetSpecError(f"{option} is {value}: take 1 to {most:,}")


def _check_outputs(args: argparse.Namespace) -> None:
    from engine.output_file import check_output

    others = [path for path in (args.trace, args.profile) if path is not None]
    for path in (args.png, args.html, args.json):
        if path is not None:
            check_output(path, others)
            others.append(path)


def _kind(args: argparse.Namespace) -> "ReplicaKind":
    from engine.performance_profile import PerformanceProfile
    from simulator.errors import FleetSpecError
    from simulator.presets import find_preset
    from simulator.replica_kind import kind_of_profile

    if args.profile is not None:
        return kind_of_profile(PerformanceProfile.read(args.profile), args.engine)
    if args.engine is not None:
        raise FleetSpecError("--engine is for a profile with several")
    return find_preset(args.gpu)


def _workload(args: argparse.Namespace) -> "Workload":
    from simulator.commands.trace_argument import read_trace
    from simulator.errors import TraceError

    if args.requests is not None and args.requests < 1:
        raise TraceError(f"--requests is {args.requests}: at least one is replayed")
    if not 0 <= args.spread_s < float("inf"):
        raise TraceError(f"--spread-s is {args.spread_s}: take 0 s or more")
    workload = read_trace(args.trace, sessions_per_s=args.sessions_per_s)
    if args.requests is not None:
        workload = workload.first(args.requests)
    if args.speed != 1.0:
        workload = workload.accelerated(args.speed)
    if args.spread_s:
        workload = workload.spread(args.spread_s)
    if not workload.duration_s <= _LONGEST_TRACE_S:
        raise TraceError(
            f"{args.trace} takes {workload.duration_s:.3g} s: at most {_LONGEST_TRACE_S:.0e} s are "
            "replayed; see its times, --speed and --spread-s"
        )
    return workload


def _simulate(case: _Case, args: argparse.Namespace) -> None:
    from simulator.summary import Run

    for note in _notes(case, args):
        print(note, flush=True)
    runs: list[Run] = []
    try:
        for policy in dict.fromkeys(args.policy):
            outcome = _outcome(case, policy, args)
            replica_s = outcome.replica_s or args.replicas * outcome.duration_s
            cost = case.price * case.kind.num_devices * replica_s / 3600
            runs.append(Run(policy, outcome, cost))
    finally:
        # Who stops the third policy keeps the first two.
        if runs:
            _report(case, args, runs)


def _report(case: _Case, args: argparse.Namespace, runs: "list[Run]") -> None:
    from simulator.summary import render_table, summarize, table_cells

    summaries = [summarize(run) for run in runs]
    print(render_table(table_cells(summaries)), flush=True)
    _write(case, args, runs, summaries)


def _outcome(case: _Case, policy: str, args: argparse.Namespace) -> "Outcome":
    from dataclasses import replace

    from simulator.fleet import FleetSpec, simulate

    if args.routing_only:
        return _route(case, policy, args)
    replica = replace(case.kind.spec(), num_kv_tokens=case.num_kv_tokens)
    spec = FleetSpec(
        args.replicas, replica, policy, num_gateways=args.gateways, stale_s=args.stale_s
    )
    return simulate(case.workload, spec)


def _route(case: _Case, policy: str, args: argparse.Namespace) -> "Outcome":
    from app.routing.candidate import ReplicaRates
    from engine.step_time import StepWork
    from simulator.policies.registry import create_policy
    from simulator.routing_model import RoutingModel
    from simulator.routing_spec import RoutingSpec

    # A replica here has one speed: that of a step as large as they get.
    size = case.kind.max_num_batched_tokens
    step_s = case.kind.model.step_time_s(StepWork(size, num_attended_tokens=size * size / 2))
    spec = RoutingSpec(
        args.replicas,
        ReplicaRates(prefill_token_s=step_s / size),
        cache_tokens=case.num_kv_tokens,
        answer_token_s=case.kind.model.step_time_s(StepWork(num_decodes=1)),
        num_gateways=args.gateways,
        stale_s=args.stale_s,
    )
    return RoutingModel(spec, create_policy(policy), case.workload).run()


def _notes(case: _Case, args: argparse.Namespace) -> list[str]:
    from simulator.presets import TEACHING_PRESETS

    workload, kind = case.workload, case.kind
    fleet = (
        f"{workload.name}: {len(workload):,} requests in {workload.duration_s:,.0f} s; replicas: "
        f"{args.replicas} of {kind.label} with {case.num_kv_tokens:,} tokens of KV each; gateways: "
        f"{args.gateways}, which hear of load {args.stale_s:g} s later"
    )
    notes = [fleet]
    if kind.label in TEACHING_PRESETS:
        notes.append(f"{kind.label}: formulas for a lecture, no measurement of any machine")
    if args.routing_only:
        notes.append("routing only: no steps, no batches; compare policies, not seconds")
    if case.price:
        notes.append(f"${case.price:g} per device and hour ({case.price_note})")
    return notes


def _write(
    case: _Case, args: argparse.Namespace, runs: "list[Run]", summaries: "list[Summary]"
) -> None:
    import msgspec

    from engine.output_file import write_output
    from simulator.plots import draw_html, draw_png
    from simulator.summary import table_cells

    contents: list[tuple[Path, bytes]] = []
    if args.json is not None:
        figures = msgspec.json.format(msgspec.json.encode(summaries), indent=1)
        contents.append((args.json, figures + b"\n"))
    if args.png is not None:
        contents.append((args.png, draw_png(runs, summaries)))
    if args.html is not None:
        title = f"{case.workload.name} on {args.replicas} × {case.kind.label}"
        rows = table_cells(summaries)
        page = draw_html(title, _notes(case, args), rows, runs, summaries)
        contents.append((args.html, page.encode()))
    for path, content in contents:
        write_output(path, content)
        print(f"wrote {path}")
