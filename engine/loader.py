"""Where the weights of a model come from: safetensors files, or nowhere for their shapes alone.

A tensor that is used whole and as it is stored stays mapped: it costs nothing to read, and
processes on one node share the pages. Others are read into memory of their own, the wanted part
alone: a mapped tensor's pages count for a process that touches them, and those of a slice by
columns are all of its pages. Must not know what a tensor is for.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.models.shard import TensorPart
from engine.tensor_file import TensorFile


class Weights(Protocol):
    """The tensors of a checkpoint by name."""

    def __contains__(self, name: str) -> bool: ...

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        part: TensorPart | None = None,
        *,
        mapped_as: torch.dtype | None = None,
    ) -> Tensor:
        """``part`` of the tensor called ``name``, which as a whole has ``shape``; None: all of it.

        Mapped if it is stored as ``mapped_as`` and wanted whole, else a copy in the type that it is
        stored in. Raises `CheckpointError` if it is absent or of another shape.
        """
        ...

    def skip(self, name: str) -> None:
        """Count the tensor as taken: another rank holds it."""
        ...

    def check_all_taken(
        self, *, ignored_suffixes: Sequence[str] = (), ignored_prefixes: Sequence[str] = ()
    ) -> None:
        """Raise `CheckpointError` if tensors are left over: the architecture is another one."""
        ...


class WeightFiles:
    """Those of safetensors files. Remembers which were taken, to find left-overs."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._file_of: dict[str, TensorFile] = {}
        self._taken: set[str] = set()
        for path in paths:
            try:
                file = TensorFile(path)
            except OSError as error:
                raise CheckpointError(
                    f"cannot read {path} ({error}). Delete it and pull the model again."
                ) from error
            self._file_of.update(dict.fromkeys(file.names, file))

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        part: TensorPart | None = None,
        *,
        mapped_as: torch.dtype | None = None,
    ) -> Tensor:
        file = self._find(name, shape)
        self._taken.add(name)
        if part is None and mapped_as is file.dtype_of(name):
            return file.map(name)
        return file.read(name, part)

    def skip(self, name: str) -> None:
        self._taken.add(name)

    def _find(self, name: str, shape: tuple[int, ...]) -> TensorFile:
        file = self._file_of.get(name)
        if file is None:
            raise CheckpointError(
                f"the checkpoint has no tensor {name!r}: its config.json doesn't describe its "
                "weights. Pull the model again."
            )
        if file.shape_of(name) != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {file.shape_of(name)}, but config.json asks for "
                f"{shape}. Pull the model again."
            )
        return file

    def check_all_taken(
        self, *, ignored_suffixes: Sequence[str] = (), ignored_prefixes: Sequence[str] = ()
    ) -> None:
        """Left-over tensors mean another architecture: raises `CheckpointError` and names one.

        Names that begin or end as ``ignored`` may stay.
        """
        left = [
            name
            for name in self._file_of
            if name not in self._taken
            and not name.endswith(tuple(ignored_suffixes))
            and not name.startswith(tuple(ignored_prefixes))
        ]
        if left:
            raise CheckpointError(
                f"the checkpoint has {len(left)} tensors that its architecture doesn't use, "
                f"such as {min(left)!r}: it is a model of another kind."
            )


class MetaWeights:
    """Tensors of any name and shape without memory, to build a model of any size from its config
    alone. Counts what was asked for."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.num_elements = 0

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self._dtype.itemsize

    def __contains__(self, name: str) -> bool:
        return True

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        part: TensorPart | None = None,
        *,
        mapped_as: torch.dtype | None = None,
    ) -> Tensor:
        held = shape if part is None else part.shape_of(shape)
        tensor = torch.empty(held, dtype=self._dtype, device="meta")
        self.num_elements += tensor.numel()
        return tensor

    def skip(self, name: str) -> None:
        """There is no list of what was taken."""

    def check_all_taken(
        self, *, ignored_suffixes: Sequence[str] = (), ignored_prefixes: Sequence[str] = ()
    ) -> None:
        """There is nothing that could be left over."""
