"""What is wrong with a `serve run` file, one line each, and where in the file it stands."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that must be changed before the file can be served."""

    message: str
    path: KeyPath = ()
    """Where: keys and positions from the top of the document."""

    def __str__(self) -> str:
        return f"{format_path(self.path)}: {self.message}" if self.path else self.message


def format_path(path: KeyPath) -> str:
    """`applications[0].args.engine`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def unknown_key(key: str, known: Iterable[str], path: KeyPath) -> Fault:
    """A typing error in a key; names the one that was probably meant."""
    close = difflib.get_close_matches(key, list(known), n=1)
    hint = f", did you mean {close[0]!r}?" if close else ": remove it"
    return Fault(f"unknown key{hint}", (*path, key))


def from_validation(error: ValidationError, path: KeyPath, known: Iterable[str]) -> list[Fault]:
    """One fault per complaint of pydantic; `known` are keys to guess from."""
    return [_from_detail(detail, path, known) for detail in error.errors(include_url=False)]


def _from_detail(detail: ErrorDetails, path: KeyPath, known: Iterable[str]) -> Fault:
    where = (*path, *detail["loc"])
    if detail["type"] == "extra_forbidden":
        return unknown_key(str(detail["loc"][-1]), known, where[:-1])
    message = detail["msg"].removeprefix("Value error, ").replace("\n", " ")
    if detail["type"] == "missing":
        return Fault("is missing", where)
    return Fault(message[:1].lower() + message[1:], where)


def line_of(document: yaml.Node | None, path: KeyPath) -> int | None:
    """Line, from 1, of the deepest part of `path` that is in the document."""
    line: int | None = None
    node = document
    for part in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if pair[0].value == str(part)]
            if not found:
                break
            line = found[0][0].start_mark.line + 1
            node = found[0][1]
            continue
        else:
            break
        line = node.start_mark.line + 1
    return line
