"""The types that a GGUF file gives its tokens, one number for each (tokenizer.ggml.token_type)."""

from collections.abc import Sequence

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_metadata import numbers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""llama_token_type of llama.cpp."""


def token_types(file: GgufFile, num_tokens: int) -> list[int]:
    """By token id; raises `CorruptCheckpoint` if one is none of the above."""
    kinds = numbers(file, "tokenizer.ggml.token_type", num_tokens)
    if not all(type(kind) is int and NORMAL <= kind <= BYTE for kind in kinds):
        raise CorruptCheckpoint(
            f"{file.path}: tokenizer.ggml.token_type holds a type that is none. Download it again."
        )
    return kinds  # type: ignore[return-value]


def num_in_use(kinds: Sequence[int]) -> int:
    """Tokens before the padding, which makes the embedding a round number of rows."""
    used = len(kinds)
    while used and kinds[used - 1] == UNUSED:
        used -= 1
    return used
