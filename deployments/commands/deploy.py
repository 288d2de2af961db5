"""`headwater deploy FILE --cluster NAME`: checks, uploads the models, lets the cluster serve."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deployments.aws.aws_clients import AwsClients
    from deployments.aws.cluster_card import ClusterCard
    from deployments.aws.config_history import ConfigVersion
    from deployments.faults import Fault
    from deployments.serve_file import ServeFile

HELP = "serve a `serve run` file on a cluster that Terraform made"

DEFAULT_TIMEOUT_S = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="?", help="the YAML file")
    add_cluster_arguments(parser)
    add_timeout(parser)
    parser.add_argument(
        "--keep-sources",
        action="store_true",
        help="let nodes pull models from where the file says, instead of from the weights bucket",
    )
    parser.add_argument(
        "--current",
        action="store_true",
        help="no file: what is in force, if Serve runs nothing; for the head itself",
    )


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Which cluster, and the way to it."""
    parser.add_argument("--cluster", required=True, metavar="NAME", help="as Terraform has it")
    parser.add_argument("--region", help="of the cluster; else AWS's own default")
    parser.add_argument(
        "--address",
        metavar="URL",
        help="of the head's dashboard by a tunnel of your own, as http://127.0.0.1:8265",
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout-s",
        type=_seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="N",
        help="for all applications to run, nodes that have to come included",
    )


def run(args: argparse.Namespace) -> int:
    from deployments.aws.errors import ClusterError
    from engine.errors import CheckpointError

    if args.current == (args.file is not None):
        print("give a FILE, or --current without one", file=sys.stderr)
        return 2
    try:
        return _redeploy(args) if args.current else _deploy(args)
    except (ClusterError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; headwater status says what is in force", file=sys.stderr)
        return 130


def _deploy(args: argparse.Namespace) -> int:
    from deployments.aws.aws_clients import aws_clients
    from deployments.aws.cluster_access import check_way
    from deployments.aws.cluster_directory import read_card
    from deployments.aws.cluster_fit import check_fit, cluster_document, render
    from deployments.aws.config_history import ConfigHistory
    from deployments.aws.errors import FileUnfit
    from deployments.aws.model_upload import Uploads
    from deployments.environment import headwater_home
    from deployments.preflight import check_for_elsewhere, check_models
    from deployments.serve_file import read_serve_file

    home = headwater_home()
    file = read_serve_file(args.file)
    faults = check_for_elsewhere(file, home)
    if not faults:
        clients = aws_clients(args.region)
        card = read_card(clients, args.cluster)
        faults = list(check_fit(file, card))
    if _complain(file, faults):
        return 1
    check_way(clients, card, args.address)  # before an hour of uploads
    seen = ConfigHistory(clients, card).current()
    try:
        document, changes = cluster_document(args.file.read_text("utf-8"))
    except ValueError as error:
        raise FileUnfit(f"{args.file}: Serve takes only what JSON has: {error}") from error
    for change in changes:
        _say(change)
    if not args.keep_sources:
        Uploads(clients.s3, card.weights_bucket, home, _say).rewrite(file, document)
        if _complain(file, check_models(file, home)):  # of those that have just come, too
            return 1
    return apply(
        args, clients, card, render(document), seen=seen, why=f"deploy of {args.file.name}"
    )


def apply(
    args: argparse.Namespace,
    clients: "AwsClients",
    card: "ClusterCard",
    text: bytes,
    *,
    seen: "ConfigVersion | None",
    why: str,
) -> int:
    """Put ``text`` in force and wait until it runs. Raises `ClusterError`."""
    import socket
    import time

    from deployments.aws.cluster_access import serve_of
    from deployments.aws.config_history import ConfigHistory
    from deployments.aws.deploy_lock import DeployLock
    from deployments.aws.deployment_run import (
        Clock,
        application_names,
        document_of,
        put_in_force,
        wait_until_running,
    )
    from deployments.aws.errors import ClusterError

    lock = DeployLock(clients, card.config_bucket, holder=socket.gethostname(), now_s=time.time)
    with serve_of(clients, card, args.address) as serve:
        version = put_in_force(
            text, serve=serve, history=ConfigHistory(clients, card), lock=lock, seen=seen, why=why
        )
        _say(f"version {version} is in force")
        names = application_names(document_of(text))
        try:
            wait_until_running(names, serve, timeout_s=args.timeout_s, report=_say, clock=Clock())
        except ClusterError as error:
            print(
                f"version {version} is in force, but: {error}; see headwater status, or go back "
                "with headwater rollback",
                file=sys.stderr,
            )
            return 1
    print(f"all applications run: {card.endpoint}")
    return 0


def _redeploy(args: argparse.Namespace) -> int:
    from deployments.aws.aws_clients import aws_clients
    from deployments.aws.cluster_access import serve_of
    from deployments.aws.cluster_directory import read_card
    from deployments.aws.config_history import ConfigHistory
    from deployments.aws.deployment_run import Clock, redeploy_in_force

    clients = aws_clients(args.region)
    card = read_card(clients, args.cluster)
    with serve_of(clients, card, args.address) as serve:
        version = redeploy_in_force(
            serve, ConfigHistory(clients, card), timeout_s=args.timeout_s, clock=Clock()
        )
    _say("nothing to do" if version is None else f"Serve has version {version} again")
    return 0


def _complain(file: "ServeFile", faults: Iterable["Fault"]) -> bool:
    """Whether there was anything to complain about."""
    lines = [file.describe(fault) for fault in faults]
    for line in lines:
        print(line, file=sys.stderr)
    return bool(lines)


def _say(line: str) -> None:
    print(line, flush=True)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 7 * 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: write 1800")
    return seconds
