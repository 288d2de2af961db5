"""The checkpoint folder: what it holds, how it is opened and how it is proved.

``<home>/models/<name>/`` holds a Hugging Face style checkpoint (config.json, *.safetensors,
tokenizer.json, ...) that transformers loads as it is, and the manifest. Opening is cheap and reads
no weights; ``verify`` hashes everything. Knows neither where checkpoints come from nor how a model
runs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoints.chat_template_file import read_chat_template
from engine.checkpoints.errors import CorruptCheckpoint, HashMismatch
from engine.checkpoints.generation_config import (
    read_bos_token_id,
    read_eos_token_ids,
    read_sampling_defaults,
)
from engine.checkpoints.json_file import read_json_object, read_optional_json_object
from engine.checkpoints.manifest import FileEntry, Manifest, read_manifest, sha256_of_file
from engine.checkpoints.safetensors_file import check_safetensors
from engine.messages import SamplingDefaults

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder that passed the cheap checks."""

    path: Path
    manifest: Manifest
    config: dict[str, Any]
    """config.json, in Hugging Face's keys."""
    chat_template: str | None
    """Jinja source; absent for a base model."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an answer."""
    bos_token_id: int | None
    special_tokens: dict[str, str]
    """Text of ``bos_token``, ``eos_token``, ...: what chat templates refer to."""
    sampling_defaults: SamplingDefaults
    """What its makers recommend."""

    @property
    def revision(self) -> str:
        """Hash of the weights: of the one safetensors file, or of the list of several."""
        return self.manifest.weights_sha256

    @property
    def tokenizer_path(self) -> Path:
        """The ``tokenizers`` library's file."""
        return self.path / "tokenizer.json"

    @property
    def weights_paths(self) -> tuple[Path, ...]:
        """The safetensors files, sorted by name."""
        names = (name for name in self.manifest.files if name.endswith(".safetensors"))
        return tuple(self.path / name for name in sorted(names))


def checkpoint_path(home: Path, name: str) -> Path:
    """Where the checkpoint called ``name`` lives."""
    return home / "models" / name


def open_checkpoint(path: Path, *, weights_sha256: str | None = None) -> Checkpoint:
    """Open a folder after checking it against its manifest and the pinned hash.

    A file that was touched since it was written is hashed (about a second per two gigabytes);
    otherwise this takes milliseconds. Raises `MissingCheckpoint`, `CorruptCheckpoint`, or
    `HashMismatch` when a file was changed or ``weights_sha256`` is another one.
    """
    manifest = read_manifest(path)
    _check_files(path, manifest)
    if weights_sha256 is not None and weights_sha256.lower() != manifest.weights_sha256:
        raise HashMismatch(
            f"the weights in {path} have sha256 {manifest.weights_sha256}, but {weights_sha256} "
            "is pinned. Pull the pinned model, or correct the pin."
        )
    where = str(path)
    config = read_json_object(path / "config.json")
    generation = read_optional_json_object(path / "generation_config.json")
    return Checkpoint(
        path=path,
        manifest=manifest,
        config=config,
        chat_template=read_chat_template(path),
        eos_token_ids=read_eos_token_ids(generation, config, where=where),
        bos_token_id=read_bos_token_id(config, where=where),
        special_tokens=_special_tokens(path),
        sampling_defaults=read_sampling_defaults(generation, where=where),
    )


def _check_files(path: Path, manifest: Manifest) -> None:
    remedy = f"Delete {path} and pull the model again."
    for name, entry in manifest.files.items():
        if Path(name).name != name:
            raise CorruptCheckpoint(f"the manifest of {path} names {name!r}, not a file. {remedy}")
        file = path / name
        if not file.is_file():
            raise CorruptCheckpoint(f"{file} is missing. {remedy}")
        stat = file.stat()
        if stat.st_size != entry.bytes:
            raise CorruptCheckpoint(
                f"{file} has {stat.st_size} bytes instead of {entry.bytes}. {remedy}"
            )
        if stat.st_mtime_ns != entry.mtime_ns:
            _check_hash(file, entry)
        if name.endswith(".safetensors"):
            check_safetensors(file)
    if not any(name.endswith(".safetensors") for name in manifest.files):
        raise CorruptCheckpoint(f"{path} holds no safetensors file. {remedy}")
    for required in ("config.json", "tokenizer.json"):
        if required not in manifest.files:
            raise CorruptCheckpoint(f"{path} holds no {required}. {remedy}")


def _check_hash(path: Path, entry: FileEntry) -> None:
    actual = sha256_of_file(path)
    if actual != entry.sha256:
        raise HashMismatch(
            f"{path} was changed after it was written: its sha256 is {actual} instead of "
            f"{entry.sha256}. Delete {path.parent} and pull the model again."
        )


def _special_tokens(folder: Path) -> dict[str, str]:
    """Hugging Face writes a special token as its text or as a mapping with ``content``."""
    older = read_optional_json_object(folder / "special_tokens_map.json")
    path = folder / "tokenizer_config.json"
    values = {**older, **read_optional_json_object(path)}
    tokens: dict[str, str] = {}
    for key in _SPECIAL_TOKENS:
        value = values.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            continue
        if not isinstance(text, str):
            raise CorruptCheckpoint(f"{path}: {key} is no token's text. Pull the model again.")
        tokens[key] = text
    return tokens
