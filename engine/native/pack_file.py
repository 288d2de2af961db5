"""A model's packed weights in one file, written once and mapped by every process of the node.

    8 bytes magic | 4 bytes length of the header | sha256 of the header | header, JSON
    sections, each at a multiple of 64 bytes

The header follows from model, rank and how weights are packed. A file whose header or size isn't
the expected one is written anew; what lies in its sections is trusted as it is, since it is put in
place whole. Must not know what a section is for.
"""

import errno
import hashlib
import json
import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine import huge_pages
from engine.native.file_lock import held_lock

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Raised when sections would lie elsewhere; ``facts`` say what is in them."""
_MAGIC = b"HWPACKED"
_ALIGN_BYTES = 64
_LOCK_LIMIT_S = 600.0

Bytes = NDArray[np.uint8]
Contents = Callable[[], Iterable[tuple[str, Bytes]]]
"""All sections in the order of the layout, each made when it is asked for."""


@dataclass(frozen=True, slots=True)
class PackLayout:
    """Where the sections lie, and what the file begins with."""

    prefix: bytes
    offsets: Mapping[str, int]
    num_bytes: int
    """Of the whole file."""


def lay_out(sections: Mapping[str, int], facts: Mapping[str, str | int]) -> PackLayout:
    """``sections`` are bytes by name; ``facts`` say what they were made from."""
    header = json.dumps(
        {"format": FORMAT_VERSION, **facts, "sections": dict(sections)}, sort_keys=True
    ).encode()
    prefix = _MAGIC + len(header).to_bytes(4, "little") + hashlib.sha256(header).digest() + header
    offsets: dict[str, int] = {}
    end = len(prefix)
    for name, num_bytes in sections.items():
        offsets[name] = -(-end // _ALIGN_BYTES) * _ALIGN_BYTES
        end = offsets[name] + num_bytes
    return PackLayout(prefix, offsets, end)


class PackedWeights:
    """Sections in memory, mapped or this process's own; lives as long as their addresses are
    used."""

    def __init__(self, layout: PackLayout, memory: Bytes, *, is_mapped: bool) -> None:
        self._layout = layout
        self._memory = memory
        self.is_mapped = is_mapped
        self._begin = memory.ctypes.data

    def address(self, name: str) -> int:
        return int(self._begin) + self._layout.offsets[name]


def open_packed(
    path: Path, layout: PackLayout, contents: Contents, *, lock_limit_s: float = _LOCK_LIMIT_S
) -> PackedWeights:
    """Map ``path``, after writing it if it isn't there or is another one.

    Where it can't be written (a full or read-only disk) the weights are packed into memory of this
    process alone, and a line says so.
    """
    packed = _map(path, layout)
    if packed is not None:
        return packed
    try:
        with held_lock(path.with_name(f".{path.name}.lock"), limit_s=lock_limit_s) as is_held:
            packed = _map(path, layout)  # another process may have written it
            if packed is None:
                if is_held:
                    _remove_left_overs(path)
                _write(path, layout, contents())
                packed = _map(path, layout)
    except OSError as error:
        packed = _map(path, layout)  # another process may have been faster, and have cleared up
        if packed is not None:
            return packed
        logger.warning(
            "packed weights take %d MB of this process's own memory: %s can't be written (%s)",
            layout.num_bytes // 10**6,
            path,
            error,
        )
    return packed or _fill_memory(layout, contents())


def _map(path: Path, layout: PackLayout) -> PackedWeights | None:
    """None if it isn't there, or not as ``layout`` has it."""
    try:
        if path.exists() and not path.is_file():  # a pipe would never open
            logger.warning("%s is no file", path)
            return None
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != layout.num_bytes or file.read(len(layout.prefix)) != layout.prefix:
                logger.warning("%s is written anew: it isn't what this model needs", path)
                return None
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s can't be read (%s)", path, error)
        return None
    with suppress(OSError):
        mapped.madvise(mmap.MADV_WILLNEED)
    return PackedWeights(layout, np.frombuffer(mapped, dtype=np.uint8), is_mapped=True)


def _new_prefix(path: Path) -> str:
    return f".{path.name}.new-"


def _remove_left_overs(path: Path) -> None:
    """Of killed processes, or of one that writes without the lock, which can do without, too."""
    for left in path.parent.glob(f"{_new_prefix(path)}*"):
        left.unlink(missing_ok=True)


def _write(path: Path, layout: PackLayout, contents: Iterable[tuple[str, Bytes]]) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_new_prefix(path))
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, layout.num_bytes)
            _write_at(file.fileno(), layout.prefix, 0)
            for section, content in contents:
                _write_at(file.fileno(), content.data, layout.offsets[section])
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _write_at(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    left = memoryview(content)
    while left:
        num_written = os.pwrite(descriptor, left, offset)
        if num_written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        left, offset = left[num_written:], offset + num_written


def _fill_memory(layout: PackLayout, contents: Iterable[tuple[str, Bytes]]) -> PackedWeights:
    memory: Bytes = huge_pages.empty((layout.num_bytes,), torch.uint8).numpy()
    for section, content in contents:
        begin = layout.offsets[section]
        memory[begin : begin + len(content)] = content
    return PackedWeights(layout, memory, is_mapped=False)
