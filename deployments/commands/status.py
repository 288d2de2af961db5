"""`headwater status --cluster NAME`: what runs on a cluster, on which nodes, and since when.

Exit status 0 only if everything runs, so that scripts can wait for it.
"""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from deployments.commands.deploy import add_cluster_arguments

if TYPE_CHECKING:
    from deployments.aws.aws_clients import AwsClients
    from deployments.aws.cluster_card import ClusterCard
    from deployments.aws.serve_state import ServeState

HELP = "what runs on a cluster that Terraform made"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument("--json", action="store_true", help="for scripts, with every node")


def run(args: argparse.Namespace) -> int:
    from deployments.aws.aws_clients import aws_clients
    from deployments.aws.cluster_directory import read_card
    from deployments.aws.cluster_nodes import cluster_nodes
    from deployments.aws.cluster_status import ClusterStatus
    from deployments.aws.config_history import ConfigHistory
    from deployments.aws.errors import ClusterError

    try:
        clients = aws_clients(args.region)
        card = read_card(clients, args.cluster)
        versions = ConfigHistory(clients, card).versions()
        nodes = cluster_nodes(clients, card.name)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    serve, fault = _ask(clients, card, args.address)
    status = ClusterStatus(card, versions, nodes, serve, fault)
    print(json.dumps(status.to_json(), indent=2) if args.json else status.to_text())
    return 0 if status.is_running else 1


def _ask(
    clients: "AwsClients", card: "ClusterCard", address: str | None
) -> "tuple[ServeState | None, str | None]":
    """What Serve says, or why it doesn't: the rest is worth telling without it."""
    from deployments.aws.cluster_access import serve_of
    from deployments.aws.errors import ClusterError

    try:
        with serve_of(clients, card, address) as serve:
            return serve.state(), None
    except ClusterError as error:
        return None, str(error)
