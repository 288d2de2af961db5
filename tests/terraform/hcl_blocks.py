"""The outermost blocks of a Terraform file, with their attributes as they are written.

Knows strings, brackets and comments, and no heredocs: variables and outputs have none.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_HEADER = re.compile(r'(?P<kind>\w+)(?P<labels>(?:[ \t]+"[^"]*")*)[ \t]*\{')
_ATTRIBUTE = re.compile(r"(?P<name>\w+)[ \t]*=(?!=)[ \t]*")
_OPENING = "([{"
_CLOSING = ")]}"


class HclError(ValueError):
    """A file that can't be read; says where."""


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    labels: tuple[str, ...]
    attributes: Mapping[str, str]
    """Expressions by name; those of inner blocks are left out."""


def blocks(text: str) -> list[Block]:
    """In the order of the file. Raises `HclError`."""
    text = _without_comments(text)
    found = []
    position = _skip_space(text, 0)
    while position < len(text):
        header = _HEADER.match(text, position)
        if header is None:
            raise HclError(f'{_line(text, position)}: expected a block, like: variable "name" {{')
        end = _expression_end(text, header.end() - 1)
        found.append(
            Block(
                kind=header["kind"],
                labels=tuple(re.findall(r'"([^"]*)"', header["labels"])),
                attributes=dict(_attributes(text, header.end(), end - 1)),
            )
        )
        position = _skip_space(text, end)
    return found


def _attributes(text: str, start: int, end: int) -> Iterator[tuple[str, str]]:
    position = _skip_space(text, start)
    while position < end:
        if attribute := _ATTRIBUTE.match(text, position):
            stop = _expression_end(text, attribute.end())
            yield attribute["name"], text[attribute.end() : stop].strip()
        elif header := _HEADER.match(text, position):
            stop = _expression_end(text, header.end() - 1)
        else:
            raise HclError(f"{_line(text, position)}: expected an attribute or a block")
        position = _skip_space(text, stop)


def _expression_end(text: str, start: int) -> int:
    """Where what begins at ``start`` ends: at its closing bracket or the line's end."""
    open_brackets: list[str] = []
    begins_with_bracket = text[start] in _OPENING
    position = start
    while position < len(text):
        character = text[position]
        if character == '"':
            position = _string_end(text, position)
            continue
        if character in _OPENING:
            open_brackets.append(_CLOSING[_OPENING.index(character)])
        elif character in _CLOSING:
            if not open_brackets or open_brackets.pop() != character:
                raise HclError(f"{_line(text, position)}: {character} closes nothing")
            if not open_brackets and begins_with_bracket and text[start] == "{":
                return position + 1
        elif character == "\n" and not open_brackets:
            return position
        position += 1
    if open_brackets:
        raise HclError(f"{_line(text, start)}: {open_brackets[-1]} is missing")
    return position


def _string_end(text: str, start: int) -> int:
    """After the quote that ends the string at ``start``; strings in ``${...}`` are part of it."""
    position = start + 1
    depth = 0
    while position < len(text) and text[position] != "\n":
        character = text[position]
        if character == "\\":
            position += 1
        elif text.startswith(("$${", "%%{"), position):
            position += 2
        elif text.startswith(("${", "%{"), position):
            depth += 1
            position += 1
        elif depth and character == '"':
            position = _string_end(text, position)
            continue
        elif depth and character in "{}":
            depth += 1 if character == "{" else -1
        elif character == '"':
            return position + 1
        position += 1
    raise HclError(f"{_line(text, start)}: a string doesn't end")


def _without_comments(text: str) -> str:
    """Lines keep their numbers."""
    kept = []
    position = 0
    while position < len(text):
        if text[position] == '"':
            end = _string_end(text, position)
            kept.append(text[position:end])
        elif text.startswith(("#", "//"), position):
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
        elif text.startswith("/*", position):
            end = text.find("*/", position) + 2
            if end < 2:
                raise HclError(f"{_line(text, position)}: a comment doesn't end")
            kept.append("\n" * text.count("\n", position, end))
        else:
            end = position + 1
            kept.append(text[position])
        position = end
    return "".join(kept)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _line(text: str, position: int) -> str:
    return f"line {text.count(chr(10), 0, position) + 1}"
