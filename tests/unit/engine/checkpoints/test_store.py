import json
import os
import struct
from pathlib import Path

import pytest

from engine.checkpoints.errors import CorruptCheckpoint, HashMismatch, MissingCheckpoint
from engine.checkpoints.manifest import build_manifest, sha256_of_listing, write_manifest
from engine.checkpoints.pull import pull
from engine.checkpoints.safetensors_file import check_safetensors
from engine.checkpoints.store import Checkpoint, open_checkpoint


@pytest.fixture
def checkpoint(tiny_gguf: Path, tmp_path: Path) -> Checkpoint:
    return pull(str(tiny_gguf), home=tmp_path / "home")


def rewrite_manifest(checkpoint: Checkpoint) -> None:
    manifest = build_manifest(
        checkpoint.path, source="test", source_sha256="0" * 64, source_stamp=""
    )
    write_manifest(checkpoint.path, manifest)


def test_a_folder_without_manifest_is_missing_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpoint, match="headwater models pull"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"files": 3}'])
def test_a_manifest_that_is_nonsense_is_corrupt(checkpoint: Checkpoint, content: bytes) -> None:
    (checkpoint.path / "headwater.json").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match="manifest"):
        open_checkpoint(checkpoint.path)


def test_a_manifest_cannot_point_outside_its_folder(checkpoint: Checkpoint) -> None:
    path = checkpoint.path / "headwater.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../../secret"] = {"bytes": 1, "sha256": ""}
    path.write_text(json.dumps(manifest))
    with pytest.raises(CorruptCheckpoint, match="secret"):
        open_checkpoint(checkpoint.path)


def test_pinned_weights_are_checked_at_open(checkpoint: Checkpoint) -> None:
    open_checkpoint(checkpoint.path, weights_sha256=checkpoint.revision.upper())
    with pytest.raises(HashMismatch, match="pinned"):
        open_checkpoint(checkpoint.path, weights_sha256="0" * 64)


def test_one_changed_byte_is_found_at_open(checkpoint: Checkpoint) -> None:
    weights = checkpoint.path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(HashMismatch, match=r"model\.safetensors"):
        open_checkpoint(checkpoint.path)


def test_a_file_that_was_only_touched_is_as_good(checkpoint: Checkpoint) -> None:
    os.utime(checkpoint.path / "model.safetensors")
    assert open_checkpoint(checkpoint.path).revision == checkpoint.revision


def test_several_weight_files_have_one_revision_that_depends_on_each() -> None:
    digests = {"a.safetensors": "1" * 64, "b.safetensors": "2" * 64}
    other = digests | {"b.safetensors": "3" * 64}
    assert sha256_of_listing(digests) == sha256_of_listing(dict(reversed(digests.items())))
    assert sha256_of_listing(digests) != sha256_of_listing(other)


def safetensors(header: object, data: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def entry(begin: int, end: int, shape: list[int], dtype: str = "BF16") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_sound_safetensors_file_passes(tmp_path: Path) -> None:
    path = tmp_path / "sound.safetensors"
    header = {"__metadata__": {"format": "pt"}, "b": entry(4, 8, [2]), "a": entry(0, 4, [1, 2])}
    path.write_bytes(safetensors(header, bytes(8)))
    check_safetensors(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 100) + b"{}",
        safetensors([], b""),
        safetensors({"a": entry(0, 4, [2])}, bytes(3)),
        safetensors({"a": entry(0, 4, [2])}, bytes(5)),
        safetensors({"a": entry(0, 4, [3])}, bytes(4)),
        safetensors({"a": entry(0, 4, [-1, -2])}, bytes(4)),
        safetensors({"a": entry(0, 4, [2], "Q9")}, bytes(4)),
        safetensors({"a": entry(2, 6, [2])}, bytes(6)),
        safetensors({"a": entry(0, 4, [2]), "b": entry(2, 6, [2])}, bytes(6)),
    ],
)
def test_a_safetensors_file_that_is_not_complete_is_corrupt(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match="safetensors"):
        check_safetensors(path)
