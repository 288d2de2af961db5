"""`headwater rollback --cluster NAME`: serves again what was served before."""

import argparse
import sys

from deployments.commands.deploy import add_cluster_arguments, add_timeout, apply

HELP = "go back to what a cluster served before"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    add_timeout(parser)
    parser.add_argument(
        "--to",
        type=int,
        metavar="VERSION",
        help="of those that `headwater status` lists; else the last one with another file",
    )


def run(args: argparse.Namespace) -> int:
    from deployments.aws.aws_clients import aws_clients
    from deployments.aws.cluster_directory import read_card
    from deployments.aws.config_history import ConfigHistory
    from deployments.aws.errors import ClusterError

    try:
        clients = aws_clients(args.region)
        card = read_card(clients, args.cluster)
        history = ConfigHistory(clients, card)
        seen = history.current()
        wanted = history.before(args.to)
        text = history.read(wanted)
        why = f"rollback to version {wanted.version}"
        return apply(args, clients, card, text, seen=seen, why=why)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; headwater status says what is in force", file=sys.stderr)
        return 130
