"""Where the weights of a model come from: safetensors files, or nowhere for their shapes alone.

A tensor that is used as it is stored stays mapped: it costs nothing to read, and processes on one
node share the pages. Others are read into memory of their own, the wanted part alone: a mapped
tensor's pages count for a process that touches them, and those of a slice by columns are all of
its pages. Must not know what a tensor is for.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CheckpointError
from engine.models.shard import TensorPart
from engine.tensor_file import TensorFile

_STORED_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


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

        Mapped if it is stored as ``mapped_as`` and in one piece, else a copy in the type that it is
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
        self._file_of: dict[str, Any] = {}
        self._readable_of: dict[str, TensorFile] = {}
        self._taken: set[str] = set()
        for path in paths:
            try:
                file = safe_open(path, framework="pt")
                readable = TensorFile(path)
            except (OSError, SafetensorError, ValueError) as error:
                raise CheckpointError(
                    f"cannot read {path} ({error}). Delete it and pull the model again."
                ) from error
            names = list(file.keys())
            self._file_of.update(dict.fromkeys(names, file))
            self._readable_of.update(dict.fromkeys(names, readable))

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
        tensor = self._mapped(name, shape)
        self._taken.add(name)
        if part is not None:
            tensor = tensor.narrow(part.dim, part.span.start, len(part.span))
        if tensor.dtype is mapped_as and tensor.is_contiguous():
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._readable_of[name].read_into(copy, name, shape, part)
        return copy

    def skip(self, name: str) -> None:
        self._taken.add(name)

    def _mapped(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The whole tensor, of which no page is touched."""
        file = self._file_of.get(name)
        if file is None:
            raise CheckpointError(
                f"the checkpoint has no tensor {name!r}: its config.json doesn't describe its "
                "weights. Pull the model again."
            )
        tensor: Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {tuple(tensor.shape)}, but config.json asks for "
                f"{shape}. Pull the model again."
            )
        if tensor.dtype not in _STORED_DTYPES:
            raise CheckpointError(
                f"tensor {name!r} is stored as {str(tensor.dtype).removeprefix('torch.')}, which "
                "is not supported: use a checkpoint in bfloat16, float16 or float32."
            )
        return tensor

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
