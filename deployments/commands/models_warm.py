"""`headwater models warm`: brings a model's weights to nodes of a running cluster before replicas
need them, and shows where the time went.
"""

import argparse
import sys
from collections.abc import Callable

FAILED = 1
STOPPED = 130


def add_warm(add_action: Callable[..., argparse.ArgumentParser]) -> None:
    warm = add_action(
        "warm",
        help="bring weights to nodes of a running cluster, ahead of replicas",
        epilog="What is warm stays while replicas use it or the autoscaler wants it; without both, "
        "a node's cache and all that it holds end node_cache.max_idle_s after the last order.",
    )
    warm.add_argument(
        "target", metavar="NAME|FILE", help="a deployed model, or the models of a .yaml"
    )
    warm.add_argument(
        "--nodes", type=_count, metavar="N", help="on so many; else on all where a replica fits"
    )
    warm.add_argument(
        "--rung", choices=["staged", "on_disk", "cold"], default="staged",
        help="in the nodes' memory, on their disks, or no longer in memory",
    )  # fmt: skip
    warm.add_argument("--explain", action="store_true", help="show what took how long")
    warm.add_argument(
        "--address", default="auto", metavar="HOST:PORT",
        help="of the Ray cluster; auto: the one that this machine is a node of",
    )  # fmt: skip
    warm.set_defaults(act=_warm)


def _warm(args: argparse.Namespace) -> int:
    from cache_tiers.rung import Rung
    from deployments.warm_model import WarmError
    from deployments.warm_report import describe, explain
    from deployments.warm_run import warm_models

    try:
        warmed = warm_models(args.target, args.nodes, Rung[args.rung.upper()], args.address)
    except WarmError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(
            "stopped looking: nodes go on with what they were ordered, and the same command shows "
            "how far they are",
            file=sys.stderr,
        )
        return STOPPED
    for each in warmed:
        print(describe(each), file=sys.stderr if each.failure else sys.stdout)
        if args.explain:
            print("\n".join(explain(each)))
    if not warmed:
        print("no node holds it")
    return FAILED if any(each.failure for each in warmed) else 0


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of nodes: write 4")
    return int(text)
