"""Weights from safetensors files, mapped into memory: processes on one node share the pages.

Reading a tensor copies nothing. Whoever converts or repacks one makes its own copy and says so.
Must not know what a tensor is for.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CheckpointError


class WeightFiles:
    """The tensors of a checkpoint by name. Remembers which were taken, to find left-overs."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._file_of: dict[str, Any] = {}
        self._taken: set[str] = set()
        for path in paths:
            try:
                file = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"cannot read {path} ({error}). Delete it and pull the model again."
                ) from error
            self._file_of.update(dict.fromkeys(list(file.keys()), file))

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor called ``name``, mapped; `CheckpointError` if absent or of another shape."""
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
        self._taken.add(name)
        return tensor

    def check_all_taken(self, *, ignored: Sequence[str] = ()) -> None:
        """Left-over tensors mean another architecture: raises `CheckpointError` and names one.

        ``ignored`` are endings of names that carry nothing.
        """
        left = [
            name
            for name in self._file_of
            if name not in self._taken and not name.endswith(tuple(ignored))
        ]
        if left:
            raise CheckpointError(
                f"the checkpoint has {len(left)} tensors that its architecture doesn't use, "
                f"such as {min(left)!r}: it is a model of another kind."
            )
