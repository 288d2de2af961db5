"""`headwater autoscale replay`: days of request rates on a fleet of numbers, sized by the
production autoscaler and by published ones, beside who knows the future.

Needs neither a model nor a GPU nor a cluster.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.scaling.comparison import ClairvoyantRun, Comparison, ScalingRun
    from simulator.scaling.rate_replay import SizeSeries
    from simulator.scaling.rate_trace import Counts
    from simulator.scaling.view import ScalingSetting

HELP = "replay days of request rates and compare autoscaling policies"
BAD_INPUT = 2
_LEADS_S = (30.0, 120.0, 300.0)
_MOST_DAYS = 366
_MOST_TICKS = 20_000_000
_BOUND_OF_PEAK = 2
"""Whatever a policy asks for, at most so many times the busiest ten minutes' replicas."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Traces: an .npz has the arrays rate (requests/s) and cv (of the times between arrivals), "
        "each of clients by steps of 10 minutes, as ServeGen's. A .csv has the columns TIMESTAMP, "
        "ContextTokens and GeneratedTokens, a row per request, as Azure's. The first day, or of "
        "less than two days the first quarter, only warms policies up."
    )
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--trace", type=Path, required=True, metavar="FILE", help="an .npz or a .csv: see below"
    )
    traffic.add_argument("--prefix", default="", metavar="TEXT", help="of the arrays' names")
    traffic.add_argument("--days", type=int, metavar="N", help="only the first N, in place of all")
    traffic.add_argument("--seed", type=int, default=0, metavar="N", help="of drawn arrivals")
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--replica-rps", type=float, default=4.0, metavar="X", help="requests/s that one serves"
    )
    fleet.add_argument(
        "--lead-s", type=float, action="append", metavar="S",
        help="from the decision until a replica serves; may stand repeatedly (30, 120 and 300)",
    )  # fmt: skip
    fleet.add_argument(
        "--wake-s", type=float, default=3.0, metavar="S", help="likewise, for one that sleeps"
    )
    fleet.add_argument(
        "--parked-cost", type=float, default=1.0, metavar="X",
        help="of one that sleeps, over one that serves; at 1 nobody sleeps",
    )  # fmt: skip
    fleet.add_argument(
        "--max-replicas", type=int, metavar="N",
        help="in place of twice what the busiest ten minutes take",
    )  # fmt: skip
    fleet.add_argument("--tick-s", type=float, default=10.0, metavar="S", help="between decisions")
    fleet.add_argument(
        "--policy", nargs="+", metavar="NAME", help="in place of all; an unknown name lists them"
    )
    fleet.add_argument(
        "--frontier", action="store_true",
        help="beside the first policy, who knows the future: a minute per lead",
    )  # fmt: skip
    results = parser.add_argument_group("results, beside the table")
    results.add_argument("--png", type=Path, metavar="FILE", help="plots")
    results.add_argument("--html", type=Path, metavar="FILE", help="table and plots in one page")
    results.add_argument("--json", type=Path, metavar="FILE", help="all figures")


def run(args: argparse.Namespace) -> int:
    from engine.errors import EngineError
    from simulator.errors import SimulationError

    try:
        counts, settings, policies = _case(args)
        _replay(args, counts, settings, policies)
    except (SimulationError, EngineError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def _case(args: argparse.Namespace) -> "tuple[Counts, list[ScalingSetting], list[str]]":
    """All that can be wrong is found before the first replay."""
    from dataclasses import replace

    from engine.output_file import check_output
    from simulator.errors import TraceError
    from simulator.plots import check_plots
    from simulator.scaling.comparison import static_peak
    from simulator.scaling.rate_trace import DAY_S, read_rates
    from simulator.scaling.registry import POLICIES, create_scaling_policy
    from simulator.scaling.view import ScalingSetting

    if args.days is not None and not 1 <= args.days <= _MOST_DAYS:
        raise TraceError(f"--days is {args.days}: take 1 to {_MOST_DAYS}")
    if args.seed < 0:
        raise TraceError(f"--seed is {args.seed}: take 0 or more")
    setting = ScalingSetting(
        args.replica_rps,
        0.0,
        tick_s=args.tick_s,
        wake_s=args.wake_s,
        parked_cost=args.parked_cost,
    )
    settings = [replace(setting, lead_s=lead_s) for lead_s in args.lead_s or _LEADS_S]
    policies = list(dict.fromkeys(args.policy or POLICIES))
    for name in policies:
        create_scaling_policy(name, setting)
    others = [args.trace]
    for path in (args.png, args.html, args.json):
        if path is not None:
            check_output(path, others)
            others.append(path)
    if args.png or args.html:
        check_plots()
    trace = read_rates(args.trace, args.prefix)
    if trace.duration_s / args.tick_s > _MOST_TICKS:
        raise TraceError(f"--tick-s is {args.tick_s}: more than {_MOST_TICKS:,} ticks; take longer")
    counts = trace.counts(args.tick_s, args.seed)
    if args.days is not None:
        counts = counts[: round(args.days * DAY_S / args.tick_s)]
    most = args.max_replicas
    if most is None:
        most = _BOUND_OF_PEAK * static_peak(counts, setting)
    return counts, [replace(each, max_replicas=most) for each in settings], policies


def _replay(
    args: argparse.Namespace,
    counts: "Counts",
    settings: "Sequence[ScalingSetting]",
    policies: Sequence[str],
) -> None:
    from simulator.scaling.comparison import cells, compare
    from simulator.summary import render_table

    print(_note(args, counts, settings[0]), flush=True)
    rows: list[dict[str, str]] = []
    drawn = settings[min(1, len(settings) - 1)]
    series: dict[str, SizeSeries] = {}

    def keep(run: "ScalingRun", sizes: "SizeSeries") -> None:
        if run.lead_s == drawn.lead_s:
            series[run.policy] = sizes

    def tell(run: "ScalingRun | ClairvoyantRun") -> None:
        rows.append(cells(run))
        print(f"{run.lead_s:g} s: {rows[-1]['policy']}", file=sys.stderr, flush=True)

    comparison = compare(
        counts, settings, policies, with_frontier=args.frontier, tell=tell, keep=keep
    )
    print(render_table(rows), flush=True)
    _write(args, comparison, rows, series, counts, drawn)


def _note(args: argparse.Namespace, counts: "Counts", setting: "ScalingSetting") -> str:
    days = len(counts) * args.tick_s / 86_400
    return (
        f"{args.trace.stem}: {int(counts.sum()):,} requests in {days:.1f} days; a replica serves "
        f"{args.replica_rps:g}/s; decisions every {args.tick_s:g} s; at most "
        f"{setting.max_replicas} replicas; one asleep costs {args.parked_cost:g} of one that serves"
    )


def _write(
    args: argparse.Namespace,
    comparison: "Comparison",
    rows: Sequence[dict[str, str]],
    series: "dict[str, SizeSeries]",
    counts: "Counts",
    drawn: "ScalingSetting",
) -> None:
    import msgspec

    from engine.output_file import write_output
    from simulator.plots import render_page, render_png
    from simulator.scaling.rate_replay import warm_up_ticks
    from simulator.scaling.scaling_plots import draw_comparison

    contents: list[tuple[Path, bytes]] = []
    if args.json is not None:
        figures = msgspec.json.format(msgspec.json.encode(comparison), indent=1)
        contents.append((args.json, figures + b"\n"))
    if args.png is not None or args.html is not None:
        scored = counts[warm_up_ticks(len(counts), args.tick_s) :]
        figure = draw_comparison(comparison, series, scored, drawn)
        if args.png is not None:
            contents.append((args.png, render_png(figure)))
        if args.html is not None:
            title = f"Autoscaling on {args.trace.stem}"
            page = render_page(title, [_note(args, counts, drawn)], rows, figure)
            contents.append((args.html, page.encode()))
    for path, content in contents:
        write_output(path, content)
        print(f"wrote {path}")
