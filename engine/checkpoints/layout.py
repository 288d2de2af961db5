"""Which files of a folder, a prefix or a repository make up a model.

Data only: neither pickled weights nor code. Knows names, not where the files are or what is in
them.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from engine.checkpoints.errors import UnsupportedCheckpoint

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
_SAFETENSORS_OF_OTHERS = ("consolidated*", "adapter_*", "training_args*")
"""The same weights in their maker's own naming, adapters, leftovers of training."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The files to take, sorted: those of a Hugging Face folder, or one GGUF file."""

    names: tuple[str, ...]

    @property
    def gguf_name(self) -> str | None:
        return self.names[0] if self.names[0].endswith(".gguf") else None


def choose_files(names: Collection[str], *, where: str) -> Layout:
    """The model among ``names``; safetensors win over GGUF. ``where`` is for messages.

    Raises `UnsupportedCheckpoint` if there is none, or no telling which.
    """
    weights = {name for name in names if name.endswith(".safetensors") and not _is_foreign(name)}
    if not weights:
        return _only_gguf(names, where)
    if "config.json" not in names:
        raise UnsupportedCheckpoint(f"{where} has no config.json, which a checkpoint needs.")
    if "tokenizer.json" not in names:
        raise UnsupportedCheckpoint(_without_tokenizer(names, where))
    described = {name for name in DESCRIPTION_FILES if name in names}
    index = {INDEX_NAME} & set(names)
    return Layout(tuple(sorted(weights | described | index | {"tokenizer.json"})))


def _only_gguf(names: Iterable[str], where: str) -> Layout:
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if len(ggufs) == 1:
        return Layout((ggufs[0],))
    if ggufs:
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
