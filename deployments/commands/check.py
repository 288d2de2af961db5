"""`headwater check FILE`: says what is wrong with a file, and starts nothing."""

import argparse
import sys
from pathlib import Path

HELP = "validate a `serve run` file without starting anything"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the YAML file")


def run(args: argparse.Namespace) -> int:
    # Ray's schema takes most of a second to import: not for `headwater --help`.
    from deployments.environment import headwater_home
    from deployments.preflight import check_file, describe_steps, missing_models, this_machine
    from deployments.serve_file import read_serve_file

    file = read_serve_file(args.file)
    home = headwater_home()
    faults = check_file(file, home=home, machine=this_machine())
    for fault in faults:
        print(file.describe(fault), file=sys.stderr)
    if faults:
        return 1
    for model in missing_models(file, home):
        print(f"model {model.name} is not here yet: it will be pulled from {model.source}")
    for line in describe_steps(file, home):
        print(line)
    print(f"{file.path}: ok")
    return 0
