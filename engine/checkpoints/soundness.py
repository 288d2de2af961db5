"""What is proved of a checkpoint when it is pulled, so that a broken one never reaches a gateway.

The config describes a model that the engine runs, the tokenizer loads, the index of the weights
agrees with the files. Opening a checkpoint later trusts that, since its hashes are recorded.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from engine.checkpoints.chat_template_file import extract_chat_template
from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.generation_config import read_eos_token_ids, read_sampling_defaults
from engine.checkpoints.json_file import (
    read_bounded,
    read_json_object,
    read_optional_json_object,
)
from engine.checkpoints.layout import INDEX_NAME, MAX_INDEX_BYTES, MAX_TOKENIZER_BYTES
from engine.errors import CheckpointError
from engine.models.registry import read_model_config

_SAMPLE = "Hello, world! 123\n\täöü 你好"
_MAX_REASON_CHARS = 200


class _WeightIndex(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def settle_folder(folder: Path, *, where: str) -> None:
    """Check a folder of new files, and bring it into the store's own form.

    The chat template becomes a file of its own; weights that the index doesn't name are left out.
    Raises `CorruptCheckpoint` or `UnsupportedCheckpoint`.
    """
    weights = {path.name for path in folder.glob("*.safetensors")}
    for name in weights - settle_description(folder, weights, where=where):
        (folder / name).unlink()


def settle_description(folder: Path, weights: Collection[str], *, where: str) -> set[str]:
    """The same for a folder of the small files alone; which of ``weights`` the index names."""
    check_description({path.name: path for path in folder.iterdir()}, where=where)
    extract_chat_template(folder)
    _check_tokenizer(folder / "tokenizer.json")
    return _named_weights(folder, weights)


def check_description(paths: Mapping[str, Path], *, where: str) -> None:
    """Check the small files alone, before the weights are brought; ``where`` is for messages."""
    config = read_json_object(paths["config.json"])
    try:
        model = read_model_config(config)
    except CheckpointError as error:
        raise UnsupportedCheckpoint(f"{where}: {error}") from error
    generation = read_optional_json_object(paths["config.json"].with_name("generation_config.json"))
    read_sampling_defaults(generation, where=where)
    for token_id in read_eos_token_ids(generation, config, where=where):
        if token_id >= model.vocab_size:
            raise CorruptCheckpoint(
                f"{where}: eos_token_id {token_id} is outside of the vocabulary of "
                f"{model.vocab_size} tokens."
            )


def _check_tokenizer(path: Path) -> None:
    """Load it and use it once: some faults show only then."""
    from tokenizers import Tokenizer

    content = read_bounded(path, max_bytes=MAX_TOKENIZER_BYTES)
    try:
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode(_SAMPLE)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of its Rust code is no Exception
        reason = " ".join(str(error).split())[:_MAX_REASON_CHARS]
        raise CorruptCheckpoint(
            f"{path} is not a tokenizer that the tokenizers library can use ({reason}). Pull the "
            "model again, or tell its makers."
        ) from error


def _named_weights(folder: Path, weights: Collection[str]) -> set[str]:
    index_path = folder / INDEX_NAME
    if not index_path.exists():
        return set(weights)
    try:
        content = read_bounded(index_path, max_bytes=MAX_INDEX_BYTES)
        named = set(msgspec.json.decode(content, type=_WeightIndex).weight_map.values())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{index_path} is not an index of weights ({error}).") from error
    missing = sorted(named.difference(weights))
    if missing:
        raise CorruptCheckpoint(
            f"{index_path} names {missing[0]}, one of {len(missing)} files that are missing. The "
            "source is incomplete."
        )
    return named
