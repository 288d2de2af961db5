"""Reads JSON that others wrote: strict, and with bounded memory.

Refused are files above a size limit, NaN and infinities, numbers out of range, halves of surrogate
pairs, keys that stand twice, and nesting deeper than a parser's stack. Knows nothing of what the
keys mean.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from engine.checkpoints.errors import CorruptCheckpoint

MAX_JSON_BYTES = 16 << 20
"""Of a file that becomes Python objects, about twenty times its size at worst."""
_MAX_SHOWN = 80


def read_json_object(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in ``path``; raises `CorruptCheckpoint`."""
    content = read_bounded(path, max_bytes=max_bytes)
    try:
        # The first decoder is strict but keeps the last of equal keys, the second notices them.
        msgspec.json.decode(content, type=dict[str, Any])
        value = json.loads(content, object_pairs_hook=_unique)
    except RecursionError:
        raise _corrupt(path, "nested too deeply") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise _corrupt(path, str(error)) from error
    assert isinstance(value, dict)
    return value


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """The same, and an empty object if there is no such file."""
    return read_json_object(path) if path.exists() else {}


def read_bounded(path: Path, *, max_bytes: int) -> bytes:
    """The content of a file of at most ``max_bytes``; raises `CorruptCheckpoint`."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise CorruptCheckpoint(f"cannot read {path} ({error.strerror}).") from error
    if len(content) > max_bytes:
        raise CorruptCheckpoint(
            f"{path} is larger than {max_bytes >> 20} MiB, which no such file of a model is."
        )
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the key {name[:_MAX_SHOWN]!r} stands twice")
        values[name] = value
    return values


def _corrupt(path: Path, reason: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{path} is not a JSON object as a model has it ({reason}). Pull the model again, or tell "
        "its makers."
    )
