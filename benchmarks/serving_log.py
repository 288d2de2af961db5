"""What a server printed, fit for a result file: its last lines, without this machine's paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

MAX_LINE_CHARS = 240
_TAIL_BYTES = 64 * 1024
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class PathNames:
    """Says `~` for the home folder, and other names for other folders."""

    def __init__(self, names: Mapping[Path, str]) -> None:
        # The longest first: a folder may lie in another one.
        self._names = sorted(
            ((str(path), name) for path, name in names.items()), key=lambda pair: -len(pair[0])
        )

    def replace_in(self, text: str) -> str:
        for path, name in self._names:
            text = text.replace(path, name)
        return text


def last_lines(log: Path, num_lines: int) -> list[str]:
    """The last `num_lines` lines with something on them; none if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    lines = [_COLOURS.sub("", line).rstrip()[:MAX_LINE_CHARS] for line in text.splitlines()]
    return [line for line in lines if line][-num_lines:]
