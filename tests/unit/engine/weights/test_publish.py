"""A published model brings along what ranks made, and only what its headwater.json lists."""

import io
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoints.errors import CorruptCheckpoint, MissingCheckpoint, SourceUnavailable
from engine.checkpoints.extras import place_libraries
from engine.checkpoints.manifest import MANIFEST_NAME
from engine.checkpoints.pull import pull, pull_from
from engine.checkpoints.s3 import S3Source
from engine.checkpoints.store import Checkpoint, open_checkpoint
from engine.weights.publish import publish
from tests.checkpoint_hashes import verify
from tests.unit.engine.checkpoints.published import edit_json
from tests.unit.engine.checkpoints.published import publish as write_model

TARGET = "s3://bucket/team/model"
PACKED = "packed-bfloat16-0-of-1.weights"
LIBRARY = "step-0123-gxx.so"


class FakeBucket:
    """As much of boto3's client as a publication and a pull use."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.sha256s: dict[str, dict[str, str]] = {}
        self.uploads: list[str] = []

    def put_object(self, **names: Any) -> None:
        self.uploads.append(names["Key"].rsplit("/", 1)[-1])
        self.objects[names["Key"]] = names["Body"]

    def upload_file(self, path: str, bucket: str, key: str, **options: Any) -> None:
        content = Path(path).read_bytes()
        self.put_object(Key=key, Body=content)
        self.sha256s[key] = options["ExtraArgs"]["Metadata"]
        options["Callback"](len(content))

    def head_object(self, **names: str) -> dict[str, Any]:
        from botocore.exceptions import ClientError

        if names["Key"] not in self.objects:
            raise ClientError({"ResponseMetadata": {"HTTPStatusCode": 404}}, "HeadObject")
        return {"Metadata": self.sha256s.get(names["Key"], {})}

    def get_paginator(self, name: str) -> "FakeBucket":
        assert name == "list_objects_v2"
        return self

    def paginate(self, **_: str) -> list[dict[str, Any]]:
        return [
            {"Contents": [{"Key": key, "Size": len(content), "ETag": str(hash(content))}]}
            for key, content in self.objects.items()
        ]

    def get_object(self, **names: str) -> dict[str, Any]:
        begin, end = map(int, names["Range"].removeprefix("bytes=").split("-"))
        return {"Body": io.BytesIO(self.objects[names["Key"]][begin : end + 1])}


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket()


@pytest.fixture
def maker(tmp_path: Path) -> Path:
    """A home whose ranks have packed and compiled."""
    home = tmp_path / "maker"
    checkpoint = pull(str(write_model(tmp_path / "model")), home=home)
    (checkpoint.path / PACKED).write_bytes(b"packed")
    (home / "models" / ".compiled").mkdir()
    (home / "models" / ".compiled" / LIBRARY).write_bytes(b"library")
    return home


def pulled(bucket: FakeBucket, home: Path) -> Checkpoint:
    source = S3Source.parse(TARGET.removeprefix("s3:"), connect=lambda: bucket)
    return pull_from(source, home=home)


def test_a_cold_node_gets_all_that_a_replica_starts_from(
    bucket: FakeBucket, maker: Path, tmp_path: Path
) -> None:
    manifest = publish("model", TARGET, home=maker, connect=lambda: bucket)
    checkpoint = pulled(bucket, tmp_path / "home")

    verify(checkpoint)
    original = open_checkpoint(maker / "models" / "model")
    assert checkpoint.revision == original.revision
    assert (checkpoint.path / PACKED).read_bytes() == b"packed"
    assert (checkpoint.path / f"compiled-{LIBRARY}").read_bytes() == b"library"
    assert set(manifest.extras) == {PACKED, f"compiled-{LIBRARY}"}
    assert set(checkpoint.manifest.extras) == set(manifest.extras)


def test_the_source_has_the_same_pin_with_and_without_what_travels_along(
    bucket: FakeBucket, maker: Path, tmp_path: Path
) -> None:
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    with_extras = pulled(bucket, tmp_path / "one").manifest
    for name in with_extras.extras:
        del bucket.objects[f"team/model/{name}"]
    without = pulled(bucket, tmp_path / "two").manifest
    assert (without.source_sha256, without.extras) == (with_extras.source_sha256, {})


def test_a_rank_that_packs_anew_does_not_spoil_the_checkpoint(
    bucket: FakeBucket, maker: Path, tmp_path: Path
) -> None:
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    checkpoint = pulled(bucket, tmp_path / "home")
    (checkpoint.path / PACKED).write_bytes(b"packed for another processor")
    open_checkpoint(checkpoint.path)


def test_a_pull_lets_no_code_be_loaded(bucket: FakeBucket, maker: Path, tmp_path: Path) -> None:
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    assert not (pulled(bucket, tmp_path / "home").path.parent / ".compiled").exists()


def test_a_library_that_is_trusted_is_placed_unless_one_is_here(
    bucket: FakeBucket, maker: Path, tmp_path: Path
) -> None:
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    folder = pulled(bucket, tmp_path / "home").path
    cache = tmp_path / "cache"
    place_libraries(folder, cache)
    assert (cache / LIBRARY).read_bytes() == b"library"
    (cache / LIBRARY).write_bytes(b"made here")
    place_libraries(folder, cache)
    assert (cache / LIBRARY).read_bytes() == b"made here"


def test_what_the_manifest_does_not_list_is_not_taken(
    bucket: FakeBucket, maker: Path, tmp_path: Path
) -> None:
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    bucket.objects["team/model/compiled-step-9-evil.so"] = b"code"
    checkpoint = pulled(bucket, tmp_path / "home")
    assert not (checkpoint.path / "compiled-step-9-evil.so").exists()


def test_a_second_publication_sends_only_what_has_changed(bucket: FakeBucket, maker: Path) -> None:
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    assert bucket.uploads[-1] == MANIFEST_NAME
    bucket.uploads.clear()
    (maker / "models" / "model" / PACKED).write_bytes(b"packed anew")
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    assert bucket.uploads == [PACKED, MANIFEST_NAME]


@pytest.mark.parametrize("name", [PACKED, f"compiled-{LIBRARY}", "model.safetensors"])
def test_a_flipped_bit_of_any_object_is_found(
    bucket: FakeBucket, maker: Path, tmp_path: Path, name: str
) -> None:
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    content = bytearray(bucket.objects[f"team/model/{name}"])
    content[-1] ^= 1
    bucket.objects[f"team/model/{name}"] = bytes(content)
    with pytest.raises(CorruptCheckpoint, match=f"{name} arrived with sha256"):
        pulled(bucket, tmp_path / "home")


def test_a_manifest_that_is_none_is_said(bucket: FakeBucket, maker: Path, tmp_path: Path) -> None:
    publish("model", TARGET, home=maker, connect=lambda: bucket)
    bucket.objects[f"team/model/{MANIFEST_NAME}"] = b"{}"
    with pytest.raises(CorruptCheckpoint, match=f"{TARGET}/{MANIFEST_NAME} is not"):
        pulled(bucket, tmp_path / "home")


def test_a_folder_that_was_edited_beside_its_manifest_is_said(maker: Path, tmp_path: Path) -> None:
    folder = maker / "models" / "model"
    size = (folder / "config.json").stat().st_size
    edit_json(folder / "config.json", rope_theta=20000.0)
    if (folder / "config.json").stat().st_size == size:
        edit_json(folder / "config.json", rope_theta=200000.0)
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        pull(str(folder), name="copy", home=tmp_path / "home")


def test_what_cannot_be_published_is_said(bucket: FakeBucket, maker: Path) -> None:
    with pytest.raises(SourceUnavailable, match="write it as s3://bucket/prefix"):
        publish("model", "bucket/model", home=maker, connect=lambda: bucket)
    with pytest.raises(MissingCheckpoint):
        publish("none", TARGET, home=maker, connect=lambda: bucket)
    assert bucket.uploads == []
