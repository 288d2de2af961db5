"""Files that commands write: whole or not at all, and never over what they read. Must not know
what is in them. Imports no torch.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from engine.errors import EngineError


class OutputFileError(EngineError):
    """A file cannot be written, or must not be; says which, and why."""


def check_output(path: Path, others: Iterable[Path] = ()) -> None:
    """Before what takes long: whether ``path`` could be written now, and is none of ``others``,
    which are read, or written as well.

    Raises `OutputFileError`.
    """
    if not path.parent.is_dir():
        raise OutputFileError(f"there is no folder {path.parent} to write {path.name} to")
    for other in others:
        if path.resolve() == other.resolve():
            raise OutputFileError(f"{path} is named for something else, too: write to another file")
    try:
        if _is_replaced(path):
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
        if path.exists():
            with path.open("ab"):
                pass
    except OSError as error:
        raise _unwritable(path, error) from error


def write_output(path: Path, content: bytes) -> None:
    """What was there before stays if it fails. Raises `OutputFileError`."""
    try:
        if not _is_replaced(path):
            path.write_bytes(content)
            return
        target = path.resolve()
        new = target.with_name(f".{target.name}.{os.getpid()}.new")
        try:
            new.write_bytes(content)
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _is_replaced(path: Path) -> bool:
    """A device or a pipe, such as /dev/stdout, is written to instead."""
    return path.is_file() or not path.exists()


def _unwritable(path: Path, error: OSError) -> OutputFileError:
    return OutputFileError(f"{path} cannot be written: {error.strerror}")
