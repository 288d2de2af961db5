"""What comes from a source: whole and checked in memory, then on the disk, or nothing."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cache_tiers.rung import Rung
from engine.checkpoints.errors import (
    CorruptCheckpoint,
    HashMismatch,
    SourceUnavailable,
    StoreUnavailable,
    UnsupportedCheckpoint,
)
from engine.checkpoints.manifest import MANIFEST_NAME, Manifest, sha256_of_file
from engine.checkpoints.pull import pull
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from tests.checkpoint_hashes import verify
from tests.unit.engine.checkpoints.conftest import make_tiny_model
from tests.unit.engine.checkpoints.published import edit_json, publish
from tests.unit.engine.weights.source_runs import FakeSource, Node

MIB = 1 << 20
WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of more than one part each."""
    return publish(tmp_path / "published", num_shards=2, shard_bytes=9 * MIB)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node")
    yield node
    node.close()


def manifest_of(content: bytes) -> Manifest:
    return msgspec.json.decode(content, type=Manifest)


def flip(path: Path, position: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def published_with_manifest(folder: Path, tmp_path: Path) -> Path:
    """As `publish` leaves a prefix: headwater.json beside the files."""
    return pull(str(folder), name="made", home=tmp_path / "maker").path


def test_memory_holds_what_a_pull_would_put_on_the_disk(
    folder: Path, node: Node, tmp_path: Path
) -> None:
    whole = node.run(FakeSource(folder))
    pulled = pull(str(folder), name="same", home=tmp_path / "other")

    staged = manifest_of(whole.manifest)
    assert whole.revision == pulled.revision
    assert staged.source_sha256 == pulled.manifest.source_sha256
    for name, entry in pulled.manifest.files.items():
        assert staged.files[name].sha256 == entry.sha256
        assert node.contents()[name] == (pulled.path / name).read_bytes()
        assert staged.files[name].mtime_ns == os.fstat(node.files[name].fd).st_mtime_ns
    assert not node.home.exists()


def test_the_disk_follows_and_holds_the_same(folder: Path, node: Node) -> None:
    source = FakeSource(folder)
    whole = node.run(source, keep_on_disk=True)
    checkpoint = open_checkpoint(checkpoint_path(node.home, "model"))

    verify(checkpoint)
    assert checkpoint.revision == whole.revision
    assert checkpoint.manifest.source_sha256 == manifest_of(whole.manifest).source_sha256
    weights_bytes = sum((folder / name).stat().st_size for name in WEIGHTS)
    assert source.read_bytes == weights_bytes, "the disk is written out of memory"


def test_an_attempt_goes_on_with_what_is_in_memory(folder: Path, node: Node) -> None:
    source = FakeSource(folder)
    source.stop_after_bytes = 12 * MIB
    with pytest.raises(SourceUnavailable):
        node.run(source)
    again = FakeSource(folder)
    node.run(again)

    total = sum((folder / name).stat().st_size for name in WEIGHTS)
    assert again.read_bytes < total
    for name in WEIGHTS:
        assert node.contents()[name] == (folder / name).read_bytes()


def test_memory_that_was_changed_meanwhile_is_brought_again(folder: Path, node: Node) -> None:
    node.run(FakeSource(folder))
    for name in WEIGHTS:
        os.pwrite(node.files[name].fd, b"other", 100)
    again = FakeSource(folder)
    node.run(again)

    assert again.read_bytes > 0
    for name in WEIGHTS:
        assert node.contents()[name] == (folder / name).read_bytes()


def test_what_a_pull_has_left_on_the_disk_is_not_read_again(folder: Path, node: Node) -> None:
    source = FakeSource(folder)
    source.stop_after_bytes = 14 * MIB
    with pytest.raises(SourceUnavailable):
        node.run(source, rung=Rung.ON_DISK)
    again = FakeSource(folder)
    node.run(again)

    total = sum((folder / name).stat().st_size for name in WEIGHTS)
    assert again.read_bytes < total
    for name in WEIGHTS:
        assert node.contents()[name] == (folder / name).read_bytes()


def test_another_version_uses_nothing_of_the_one_before(folder: Path, node: Node) -> None:
    node.run(FakeSource(folder))
    flip(folder / WEIGHTS[0])
    node.run(FakeSource(folder, version="2"))
    assert node.contents()[WEIGHTS[0]] == (folder / WEIGHTS[0]).read_bytes()


@pytest.mark.parametrize("rung", [Rung.STAGED, Rung.ON_DISK])
@pytest.mark.parametrize("pin", ["source_sha256", "weights_sha256"])
def test_weights_that_are_not_the_pinned_ones_keep_what_was_there(
    folder: Path, node: Node, rung: Rung, pin: str
) -> None:
    first = node.run(FakeSource(folder), keep_on_disk=True)
    edit_json(folder / "generation_config.json", temperature=0.7)
    flip(folder / WEIGHTS[1])
    pins = {
        "source_sha256": manifest_of(first.manifest).source_sha256,
        "weights_sha256": first.revision,
    }
    with pytest.raises(HashMismatch, match="is pinned"):
        node.run(FakeSource(folder, version="2"), rung=rung, keep_on_disk=True, **{pin: pins[pin]})

    assert node.wholes == []
    assert open_checkpoint(checkpoint_path(node.home, "model")).revision == first.revision


def test_a_pin_that_the_source_itself_contradicts_costs_no_download(
    folder: Path, node: Node, tmp_path: Path
) -> None:
    source = FakeSource(published_with_manifest(folder, tmp_path))
    with pytest.raises(HashMismatch, match="is pinned for model"):
        node.run(source, weights_sha256="0" * 64)
    assert source.read_bytes == 0


def test_an_index_that_names_a_file_that_is_not_there_costs_no_download(
    folder: Path, node: Node
) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["weight.9"] = "model-00003-of-00002.safetensors"
    path.write_text(json.dumps(index))
    source = FakeSource(folder)
    with pytest.raises(CorruptCheckpoint, match="names model-00003"):
        node.run(source)
    assert (source.read_bytes, node.files) == (0, {})


def test_a_model_that_nobody_runs_costs_no_download(folder: Path, node: Node) -> None:
    edit_json(folder / "config.json", model_type="unheard")
    source = FakeSource(folder)
    with pytest.raises(UnsupportedCheckpoint):
        node.run(source)
    assert source.read_bytes == 0


def test_a_flipped_bit_is_found_by_the_published_hash(
    folder: Path, node: Node, tmp_path: Path
) -> None:
    made = published_with_manifest(folder, tmp_path)
    flip(made / WEIGHTS[0], 5 * MIB)
    with pytest.raises(CorruptCheckpoint, match="arrived with sha256"):
        node.run(FakeSource(made), keep_on_disk=True)
    assert node.wholes == []
    assert not checkpoint_path(node.home, "model").exists()

    flip(made / WEIGHTS[0], 5 * MIB)
    node.run(FakeSource(made))
    assert node.contents()[WEIGHTS[0]] == (made / WEIGHTS[0]).read_bytes()


def test_a_truncated_file_is_found_before_it_is_read(
    folder: Path, node: Node, tmp_path: Path
) -> None:
    made = published_with_manifest(folder, tmp_path)
    os.truncate(made / WEIGHTS[0], 8 * MIB)
    source = FakeSource(made)
    with pytest.raises(CorruptCheckpoint, match=r"instead of the \d+ that headwater.json says"):
        node.run(source)
    assert source.read_bytes == 0


def test_without_a_published_hash_a_truncated_file_is_found_by_its_header(
    folder: Path, node: Node
) -> None:
    os.truncate(folder / WEIGHTS[0], 8 * MIB)
    with pytest.raises(CorruptCheckpoint, match=f"^{WEIGHTS[0]} is not a complete safetensors"):
        node.run(FakeSource(folder))
    assert node.wholes == []


def test_weights_that_the_published_manifest_misses_are_said(
    folder: Path, node: Node, tmp_path: Path
) -> None:
    made = published_with_manifest(folder, tmp_path)
    (made / WEIGHTS[1]).unlink()
    with pytest.raises(CorruptCheckpoint, match=f"lacks {WEIGHTS[1]}"):
        node.run(FakeSource(made))


def test_a_revision_that_was_published_over_another_ignores_what_that_one_left(
    folder: Path, node: Node, tmp_path: Path
) -> None:
    made = published_with_manifest(publish(tmp_path / "single"), tmp_path)
    (made / WEIGHTS[0]).write_bytes((folder / WEIGHTS[0]).read_bytes())
    whole = node.run(FakeSource(made))
    assert whole.revision == sha256_of_file(made / "model.safetensors")
    assert WEIGHTS[0] not in node.files


def test_a_disk_that_cannot_be_written_does_not_stop_memory(folder: Path, node: Node) -> None:
    node.root.mkdir()
    node.home.write_text("in the way")
    with pytest.raises(StoreUnavailable, match="cannot bring the model to"):
        node.run(FakeSource(folder), keep_on_disk=True)
    assert len(node.wholes) == 1
    for name in WEIGHTS:
        assert node.contents()[name] == (folder / name).read_bytes()


def test_a_gguf_model_is_made_on_the_disk(node: Node, tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    make_tiny_model().write(tmp_path / "gguf" / "tiny.gguf")
    whole = node.run(FakeSource(tmp_path / "gguf"))
    assert node.files == {}
    assert open_checkpoint(checkpoint_path(node.home, "model")).revision == whole.revision


def test_weights_that_the_index_does_not_name_are_left_out_as_by_a_pull(
    folder: Path, node: Node, tmp_path: Path
) -> None:
    (folder / "model.safetensors").write_bytes((folder / WEIGHTS[0]).read_bytes())
    whole = node.run(FakeSource(folder))
    pulled = pull(str(folder), name="same", home=tmp_path / "other")
    assert node.files == {}
    assert manifest_of(whole.manifest).source_sha256 == pulled.manifest.source_sha256
    assert (checkpoint_path(node.home, "model") / MANIFEST_NAME).exists()
