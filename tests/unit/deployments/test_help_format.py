"""Help says the defaults of all commands that are installed, and nothing where there is none."""

import argparse
from collections.abc import Iterator

import pytest

from deployments.cli import build_parser, load_commands
from deployments.help_format import HelpWithDefaults


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Itself and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def help_of(*names: str, **options: object) -> str:
    parser = argparse.ArgumentParser(formatter_class=HelpWithDefaults)
    parser.add_argument(*names, **options)  # type: ignore[arg-type]
    return " ".join(parser.format_help().split())


def test_a_default_stands_behind_the_text() -> None:
    assert "how many (default: 3)" in help_of("--n", default=3, help="how many")
    assert "a share (default: 0.1)" in help_of("--x", default=0.1, help="a share")
    assert "sizes (default: 1 16)" in help_of("--n", nargs="+", default=[1, 16], help="sizes")
    assert "text (default: 5%)" in help_of("--x", default="5%", help="text")


@pytest.mark.parametrize("default", [None, [], False, argparse.SUPPRESS])
def test_nothing_is_said_where_there_is_no_default(default: object) -> None:
    assert "default" not in help_of("--x", default=default, help="some")


@pytest.mark.parametrize("parser", [*parsers(build_parser(load_commands()))], ids=lambda p: p.prog)
def test_every_option_has_a_help_text_and_shows_its_default(
    parser: argparse.ArgumentParser,
) -> None:
    text = " ".join(parser.format_help().split())
    assert "None" not in text
    assert "[]" not in text
    for action in parser._actions:
        if action.option_strings:
            assert action.help, action.option_strings
            if isinstance(action.default, (int, float)) and not isinstance(action.default, bool):
                assert f"(default: {action.default:g})" in text
