"""Which files of a folder, a prefix or a repository make up a model.

Data only: neither pickled weights nor code. Knows names, not where the files are or what is in
them.
"""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from engine.checkpoints.errors import SourceUnavailable, UnsupportedCheckpoint
from engine.checkpoints.json_file import MAX_JSON_BYTES

INDEX_NAME = "model.safetensors.index.json"
DESCRIPTION_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Small files that say what a model is."""
MAX_TOKENIZER_BYTES = 64 << 20
MAX_INDEX_BYTES = 64 << 20
_MAX_BYTES = {
    **dict.fromkeys(DESCRIPTION_FILES, MAX_JSON_BYTES),
    "tokenizer.json": MAX_TOKENIZER_BYTES,
    INDEX_NAME: MAX_INDEX_BYTES,
}
_SHARD_NAME = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
_MAX_SHARDS = 1000
_SAFETENSORS_OF_OTHERS = ("consolidated*", "adapter_*", "training_args*")
"""The same weights in their maker's own naming, adapters, leftovers of training."""


def choose_files(names: Collection[str], *, where: str) -> tuple[str, ...]:
    """The model among ``names``, sorted: a Hugging Face folder's files, or those of one GGUF model.

    ``where`` is for messages. Raises `UnsupportedCheckpoint` if there is none, or no telling which.
    """
    names = {name for name in names if name.isprintable() and not name.startswith(".")}
    weights = {name for name in names if name.endswith(".safetensors") and not _is_foreign(name)}
    if not weights:
        return _only_gguf(names, where)
    if "config.json" not in names:
        raise UnsupportedCheckpoint(f"{where} has no config.json, which a checkpoint needs.")
    if "tokenizer.json" not in names:
        raise UnsupportedCheckpoint(_without_tokenizer(names, where))
    described = {name for name in DESCRIPTION_FILES if name in names}
    index = {INDEX_NAME} & set(names)
    return tuple(sorted(weights | described | index | {"tokenizer.json"}))


def check_sizes(num_bytes: Mapping[str, int], *, where: str) -> None:
    """Refuse, before it is read, a file that is larger than any of its kind."""
    for name, size in num_bytes.items():
        limit = _MAX_BYTES.get(name)
        if limit is not None and size > limit:
            raise UnsupportedCheckpoint(
                f"{where}: {name} has {size} bytes, more than {limit >> 20} MiB, which no such "
                "file of a model has."
            )


def gguf_files(name: str, names: Collection[str], *, where: str) -> tuple[str, ...]:
    """The GGUF file ``name``, or all shards of the model it is a shard of; all among ``names``."""
    match = _SHARD_NAME.fullmatch(name)
    wanted: tuple[str, ...] = (name,)
    if match is not None:
        stem, count = match["stem"], min(int(match["count"]), _MAX_SHARDS)
        wanted = tuple(f"{stem}-{number + 1:05}-of-{count:05}.gguf" for number in range(count))
    missing = [file for file in wanted if file not in names]
    if missing:
        raise SourceUnavailable(f"{where} has no file {missing[0]}. Correct the name.")
    return wanted


def _only_gguf(names: Collection[str], where: str) -> tuple[str, ...]:
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if ggufs:
        first = gguf_files(ggufs[0], names, where=where)
        if len(first) == len(ggufs):
            return first
        shown = ", ".join(ggufs[:4]) + (", …" if len(ggufs) > 4 else "")
        raise UnsupportedCheckpoint(
            f"{where} has no safetensors weights but {len(ggufs)} GGUF files ({shown}): name the "
            f"one to pull, {where}/{ggufs[0]}."
        )
    if any(name.startswith("adapter_") for name in names):
        raise UnsupportedCheckpoint(f"{where} holds an adapter (LoRA), not a model.")
    raise UnsupportedCheckpoint(
        f"{where} has no safetensors weights and no GGUF file; pickled weights are not read."
    )


def _is_foreign(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _SAFETENSORS_OF_OTHERS)


def _without_tokenizer(names: Collection[str], where: str) -> str:
    if "tokenizer.model" not in names and "vocab.json" not in names:
        return f"{where} has no tokenizer.json, which a checkpoint needs."
    return (
        f"{where} has its tokenizer in an older format only: download it to a folder, write "
        "tokenizer.json with transformers (AutoTokenizer.from_pretrained(FOLDER)"
        ".save_pretrained(FOLDER)) and pull the folder."
    )
