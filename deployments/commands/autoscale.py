"""`headwater autoscale …`: a command of commands, each an entry point of a group of its own."""

import argparse

from deployments.cli import add_commands, load_commands

HELP = "explain what the autoscaler decided, or try it on recorded traffic"
COMMAND_GROUP = "headwater.autoscale_commands"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, load_commands(COMMAND_GROUP), dest="run_autoscale")


def run(args: argparse.Namespace) -> int:
    status: int = args.run_autoscale(args)
    return status
