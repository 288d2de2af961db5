"""A model's GGUF file, or its several shards, as metadata and tensors that can be read.

Dequantizes with the ``gguf`` package's arithmetic, some rows at a time. Knows nothing of models.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Self

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_header import GgufHeader, GgufTensor, Value, read_header

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_SHARDS = 1000
_CHUNK_VALUES = 1 << 16
_PIECE_VALUES = 1 << 15
"""Dequantized at once. Its intermediate arrays stay in a core's cache and below the size from which
malloc maps fresh pages: three times as fast as a million values at once."""


class GgufFile:
    """Mapped GGUF files whose tables were checked against the files' sizes."""

    def __init__(
        self,
        path: Path,
        shards: Sequence[NDArray[np.uint8]],
        metadata: dict[str, Value],
        tensors: dict[str, GgufTensor],
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._shards = shards

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the model's files and read their headers.

        ``path`` is the file, or any of the shards, which lie side by side. Raises
        `CorruptCheckpoint` if one is damaged or missing.
        """
        shards, tensors = [], {}
        metadata: dict[str, Value] = {}
        paths = shard_paths(path)
        for number, shard_path in enumerate(paths):
            data, header = _open_one(shard_path)
            _check_split(shard_path, header, number, len(paths))
            shards.append(data)
            # Later shards hold only their tensors and what the split itself needs.
            metadata = metadata or header.metadata
            for tensor in header.tensors:
                if tensor.name in tensors:
                    raise CorruptCheckpoint(
                        f"{shard_path} holds tensor {tensor.name[:80]!r}, which another shard "
                        "holds, too. Download all shards again."
                    )
                tensors[tensor.name] = replace(tensor, shard=number)
        return cls(paths[0], shards, metadata, tensors)

    def read_rows(
        self, tensor: GgufTensor, *, multiple_of: int = 1
    ) -> Iterator[NDArray[np.float32]]:
        """The tensor's values, dequantized, in chunks of rows: shape [rows, columns].

        Each chunk has a multiple of ``multiple_of`` rows, the last as many as are left. A vector
        is one row.
        """
        num_rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1]
        data = self._shards[tensor.shard]
        raw = data[tensor.offset_bytes : tensor.offset_bytes + tensor.num_bytes]
        row_bytes = tensor.num_bytes // num_rows
        step = max(1, _CHUNK_VALUES // columns // multiple_of) * multiple_of
        for begin in range(0, num_rows, step):
            chunk = raw[begin * row_bytes : (begin + step) * row_bytes]
            yield self._dequantize(tensor, chunk).reshape(-1, columns)

    def read(self, tensor: GgufTensor) -> NDArray[np.float32]:
        """All values of a small tensor, in its row-major shape."""
        return np.concatenate(list(self.read_rows(tensor))).reshape(tensor.shape)

    def _dequantize(self, tensor: GgufTensor, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Values of a whole number of blocks."""
        block_values, block_bytes = GGML_QUANT_SIZES[tensor.quantization]
        piece_bytes = _PIECE_VALUES // block_values * block_bytes
        pieces = [raw[begin : begin + piece_bytes] for begin in range(0, len(raw), piece_bytes)]
        try:
            # A damaged scale may overflow; the check below sees it.
            with np.errstate(all="ignore"):
                values = np.concatenate(
                    [dequantize(piece, tensor.quantization) for piece in pieces], dtype=np.float32
                )
        except NotImplementedError as error:
            raise UnsupportedCheckpoint(
                f"{self.path}: tensor {tensor.name!r} is stored as {tensor.quantization.name}, "
                "which cannot be dequantized. Use another quantization of the model."
            ) from error
        if not np.isfinite(values).all():
            raise CorruptCheckpoint(
                f"{self.path}: tensor {tensor.name!r} holds NaN or infinity. Download it again."
            )
        return values


def shard_paths(path: Path) -> list[Path]:
    """All files of the model that ``path`` belongs to, in order: itself, unless it is a shard.

    Shards are called ``<name>-00001-of-00003.gguf``. Raises `CorruptCheckpoint` if one is missing.
    """
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 0 < int(match["number"]) <= count <= _MAX_SHARDS:
        raise CorruptCheckpoint(f"{path} is called a shard that cannot be. Correct its name.")
    paths = [
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    ]
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        raise CorruptCheckpoint(
            f"{path} is one of {count} shards, and {len(missing)} are missing beside it: "
            f"{', '.join(missing[:3])}. Download them, too."
        )
    return paths


def _open_one(path: Path) -> tuple[NDArray[np.uint8], GgufHeader]:
    try:
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        return data, read_header(data)
    except UnsupportedCheckpoint as error:
        raise UnsupportedCheckpoint(f"{path}: {error}") from error
    except (ValueError, OverflowError) as error:
        raise CorruptCheckpoint(
            f"{path} is not a sound GGUF file ({error}). Download it again."
        ) from error


def _check_split(path: Path, header: GgufHeader, number: int, count: int) -> None:
    """Raise unless the file agrees that it is shard ``number`` of ``count``."""
    says = _split_entry(path, header, "split.no", 0), _split_entry(path, header, "split.count", 1)
    if count == 1 and says == (0, 0):  # shards that were merged again may say so
        return
    if says != (number, count):
        raise CorruptCheckpoint(
            f"{path} says that it is number {says[0]} (from 0) of {says[1]} shards, but its name "
            f"says {number} of {count}. Give a shard the name it was made with."
        )


def _split_entry(path: Path, header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int:
        raise CorruptCheckpoint(f"{path}: metadata {key} is no number. Download it again.")
    return value
