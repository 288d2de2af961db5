"""`headwater cost --cluster FOLDER`: what a cluster costs by the hour and by the token."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from deployments.aws.aws_clients import AwsClients
    from deployments.cost.bill import NodeCount
    from deployments.cost.cluster_plan import ClusterPlan
    from deployments.cost.report import CostReport

Number = TypeVar("Number", int, float)

HELP = "what a cluster costs, by pool and by million tokens"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", type=Path, required=True, metavar="FOLDER",
        help="an environment, such as terraform/environments/prod",
    )  # fmt: skip
    parser.add_argument("--prices", type=Path, metavar="FILE", help="laid over the project's own")
    served = parser.add_mutually_exclusive_group()
    served.add_argument("--metrics", metavar="URL", help="of the gateways, for tokens served")
    served.add_argument("--served-tokens-per-s", type=float, metavar="N", help="output tokens")
    parser.add_argument("--over-s", type=float, default=10.0, help="between two looks at --metrics")
    nodes = parser.add_mutually_exclusive_group()
    nodes.add_argument("--nodes", metavar="POOL=N,…", help="a choice of nodes, such as h100=4")
    nodes.add_argument("--live", action="store_true", help="the nodes that run now, asked of AWS")
    parser.add_argument(
        "--node-tokens-per-s", metavar="POOL=N,…", help="what one node of a pool can serve"
    )
    parser.add_argument("--json", action="store_true", help="for scripts")


def run(args: argparse.Namespace) -> int:
    from deployments.aws.errors import ClusterError
    from deployments.cost.errors import CostError

    try:
        report = _report(args)
    except (CostError, ClusterError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(report.to_json(), indent=2) if args.json else report.to_text())
    return 0


def _report(args: argparse.Namespace) -> "CostReport":
    from deployments.cost.bill import fixed_rows, planned_nodes, scene
    from deployments.cost.files import read_plan, read_prices
    from deployments.cost.report import CostReport

    plan, prices = read_plan(args.cluster), read_prices(args.prices)
    rates = _numbers(args.node_tokens_per_s, float)
    choices = {
        "at the least nodes": planned_nodes(plan, _bounds(plan, "min_nodes")),
        "at the most nodes": planned_nodes(plan, _bounds(plan, "max_nodes")),
    }
    if args.nodes:
        choices["at the nodes given"] = planned_nodes(plan, _numbers(args.nodes, int))
    if args.live:
        choices["running now"] = _running(plan)
    served = _served(args)
    scenes = tuple(
        scene(name, plan, nodes, prices, served_tokens_per_s=served, node_tokens_per_s=rates)
        for name, nodes in choices.items()
    )
    today = datetime.now(UTC).date()
    return CostReport(plan, prices, today, tuple(fixed_rows(plan, prices)), scenes)


def _bounds(plan: "ClusterPlan", bound: str) -> dict[str, int]:
    return {name: getattr(pool, bound) for name, pool in plan.pools.items()}


def _served(args: argparse.Namespace) -> float | None:
    from deployments.cost.errors import CountUnfit
    from deployments.cost.served_tokens import served_tokens_per_s

    if args.metrics is None:
        given: float | None = args.served_tokens_per_s
        return given
    if not 0.0 < args.over_s <= 3600.0:
        raise CountUnfit(f"--over-s must be above 0 and at most 3600, not {args.over_s}")
    return served_tokens_per_s(args.metrics, args.over_s)


def _running(plan: "ClusterPlan", clients: "AwsClients | None" = None) -> "list[NodeCount]":
    """Without the head, which is a row of its own."""
    from deployments.aws.aws_clients import aws_clients
    from deployments.aws.cluster_nodes import cluster_nodes
    from deployments.cost.bill import NodeCount

    found = cluster_nodes(clients or aws_clients(plan.region), plan.name)
    kinds = Counter(
        (node.pool, node.market, node.instance_type) for node in found if node.pool != "head"
    )
    return [NodeCount(*kind, num_nodes=count, running=True) for kind, count in kinds.items()]


def _numbers(text: str | None, kind: Callable[[str], Number]) -> dict[str, Number]:
    """Of ``h100=4,l40s=2``. Raises `CountUnfit`."""
    from deployments.cost.errors import CountUnfit

    numbers: dict[str, Number] = {}
    for part in text.split(",") if text else ():
        name, _, number = part.partition("=")
        try:
            numbers[name.strip()] = kind(number)
        except ValueError as error:
            raise CountUnfit(f"{part!r} must be POOL=NUMBER, such as h100=4") from error
    return numbers
