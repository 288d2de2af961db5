"""The `headwater` command. Every subcommand is an entry point of the group `headwater.commands`.

An entry point names a module with `HELP`, `add_arguments(parser)` and `run(args) -> exit status`,
so that another package brings its own subcommands without a change here. Modules import what is
slow to import inside `run`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Protocol

from app.version import package_version
from deployments.help_format import HelpWithDefaults

COMMAND_GROUP = "headwater.commands"


class Command(Protocol):
    """What an entry point's module has."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def load_commands(group: str = COMMAND_GROUP) -> dict[str, Command]:
    """Installed subcommands by name."""
    found = sorted(entry_points(group=group), key=lambda entry: entry.name)
    return {entry.name: entry.load() for entry in found}


def build_parser(commands: dict[str, Command]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headwater", description="LLM serving on Ray Serve.")
    parser.add_argument("--version", action="version", version=f"headwater {package_version()}")
    add_commands(parser, commands, dest="run")
    return parser


def add_commands(
    parser: argparse.ArgumentParser, commands: dict[str, Command], *, dest: str
) -> None:
    """The chosen one's ``run`` becomes the argument ``dest``."""
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in commands.items():
        subparser = subparsers.add_parser(
            name,
            help=command.HELP,
            description=command.HELP,
            formatter_class=HelpWithDefaults,
        )
        subparser.set_defaults(**{dest: command.run})
        command.add_arguments(subparser)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the input or the machine is at fault, 2 wrong usage."""
    args = build_parser(load_commands()).parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
