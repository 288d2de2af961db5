"""Reads single metadata entries of a GGUF file as what they must be.

A missing or senseless one is `CorruptCheckpoint`, whose message names it. Knows no family.
"""

import numpy as np

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_header import Value

_MAX_COUNT = 1 << 24


def count(
    file: GgufFile, key: str, default: int | None = None, *, at_most: int = _MAX_COUNT
) -> int:
    """A whole number from 1 to ``at_most``."""
    value = file.metadata.get(key, default)
    # bool is a subclass of int, and no number of anything.
    if type(value) is not int or not 0 < value <= at_most:
        raise senseless(file, key, value)
    return value


def number(file: GgufFile, key: str, default: float | None = None) -> float:
    """A finite positive number, as short as float32 allows: 1e-05 for 9.999999747378752e-06."""
    value = file.metadata.get(key, default)
    if type(value) is not float or not 0 < value < float("inf"):
        raise senseless(file, key, value)
    short = float(str(np.float32(value)))
    if not 0 < short < float("inf"):  # a float64 beyond float32
        raise senseless(file, key, value)
    return short


def flag(file: GgufFile, key: str, *, default: bool) -> bool:
    value = file.metadata.get(key, default)
    if not isinstance(value, bool):
        raise senseless(file, key, value)
    return value


def text(file: GgufFile, key: str) -> str | None:
    """None if there is no such entry."""
    value = file.metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise senseless(file, key, value)
    return value


def strings(file: GgufFile, key: str) -> list[str]:
    value = file.metadata.get(key)
    if not isinstance(value, list):
        raise CorruptCheckpoint(f"{file.path}: {key} is no list of strings. Download it again.")
    return value


def numbers(file: GgufFile, key: str, length: int) -> list[int | float]:
    """An array of ``length`` numbers."""
    value = file.metadata.get(key)
    if not isinstance(value, np.ndarray) or len(value) != length:
        raise CorruptCheckpoint(
            f"{file.path}: {key} is no array of {length} numbers, one for each token. Download "
            "the file again."
        )
    return [*value.tolist()]


def vocab_size(file: GgufFile) -> int:
    """Rows of the embedding."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CorruptCheckpoint(f"{file.path} has no token embedding. Download it again.")
    return embedding.shape[0]


def token_id(file: GgufFile, kind: str) -> int | None:
    """Id of the ``bos``, ``eos``, ``eot``, ``unknown``, ``padding``... token, if there is one."""
    key = f"tokenizer.ggml.{kind}_token_id"
    value = file.metadata.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < vocab_size(file):
        raise senseless(file, key, value)
    return value


def senseless(file: GgufFile, key: str, value: Value | None) -> CorruptCheckpoint:
    """The error for an entry that is missing or can't be."""
    problem = "is missing" if value is None else f"is {str(value)[:40]!r}, which makes no sense"
    return CorruptCheckpoint(f"{file.path}: metadata {key} {problem}. Download the file again.")
