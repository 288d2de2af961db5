"""Pulling from an object store: boto3 as it is, against moto's server on loopback."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from deployments.cli import main
from engine.checkpoints.errors import SourceUnavailable, UnsupportedCheckpoint
from engine.checkpoints.pull import create_source, pull
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from tests.checkpoint_hashes import verify
from tests.unit.engine.checkpoints.published import edit_json, publish

pytestmark = pytest.mark.integration

MIB = 1 << 20
SOURCE = "s3://models/team/tiny"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.session.Session().client("s3")
    client.create_bucket(Bucket="models")
    yield client
    for entry in client.list_objects_v2(Bucket="models").get("Contents", []):
        client.delete_object(Bucket="models", Key=entry["Key"])
    client.delete_bucket(Bucket="models")


@pytest.fixture
def published(tmp_path: Path, client: Any) -> Path:
    folder = publish(tmp_path / "published", num_shards=2, shard_bytes=20 * MIB)
    upload(client, folder)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def upload(client: Any, folder: Path) -> None:
    for path in folder.iterdir():
        client.put_object(Bucket="models", Key=f"team/tiny/{path.name}", Body=path.read_bytes())


def test_a_prefix_becomes_a_checkpoint(client: Any, published: Path, home: Path) -> None:
    client.put_object(Bucket="models", Key="team/tiny/modeling.py", Body=b"raise SystemExit")
    client.put_object(Bucket="models", Key="team/tiny/", Body=b"")  # how consoles mark a folder
    client.put_object(Bucket="models", Key="team/tiny/original/model.safetensors", Body=b"no")
    checkpoint = pull(SOURCE, home=home)

    verify(checkpoint)
    assert checkpoint.path == home / "models" / "tiny"
    assert "modeling.py" not in checkpoint.manifest.files
    for path in checkpoint.weights_paths:
        assert path.read_bytes() == (published / path.name).read_bytes()


def test_a_second_pull_brings_only_what_was_replaced(
    client: Any, published: Path, home: Path
) -> None:
    first = pull(SOURCE, home=home)
    assert pull(SOURCE + "/", home=home) == first

    edit_json(published / "generation_config.json", temperature=0.9)
    upload(client, published)
    assert pull(SOURCE, home=home).sampling_defaults.temperature == 0.9


def test_an_object_that_is_replaced_meanwhile_is_noticed(
    client: Any, published: Path, home: Path, tmp_path: Path
) -> None:
    source = create_source(SOURCE)
    source.stamp()
    key = "team/tiny/model-00001-of-00002.safetensors"
    client.put_object(Bucket="models", Key=key, Body=bytes(20 * MIB))
    with pytest.raises(SourceUnavailable, match="changed while it was downloaded"):
        source.fetch(tmp_path / "scratch", tmp_path / "new", sha256=None)


def test_a_store_that_is_away_does_not_stop_a_model_that_is_here(
    published: Path, home: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pull(SOURCE, home=home)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert pull(SOURCE, home=home) == first


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:  # finished meanwhile
        return False


def test_a_killed_pull_is_continued(published: Path, home: Path) -> None:
    command = [sys.executable, "-m", "deployments.cli", "models", "pull", SOURCE]
    environment = {**os.environ, "HEADWATER_HOME": str(home)}
    journals = home / "models" / ".staging" / "tiny" / "downloads"
    with subprocess.Popen(command, env=environment) as process:
        while not any(map(_has_content, journals.glob("*/partial/*.safetensors.journal"))):
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
    assert not checkpoint_path(home, "tiny").exists()

    pull(SOURCE, home=home)
    verify(open_checkpoint(checkpoint_path(home, "tiny")))
    assert not journals.exists()


def test_a_prefix_is_inspected_without_its_weights(
    published: Path,
    client: Any,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADWATER_HOME", str(home))
    assert main(["models", "inspect", SOURCE, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["source"], report["eos_token_ids"]) == (SOURCE, [2])
    assert not home.exists()


def test_what_is_not_there_is_said(client: Any, home: Path) -> None:
    with pytest.raises(SourceUnavailable, match="holds no objects"):
        pull("s3://models/none", home=home)
    with pytest.raises(SourceUnavailable, match="Correct the bucket"):
        pull("s3://nowhere/tiny", home=home)
    with pytest.raises(SourceUnavailable, match="s3://bucket/prefix"):
        pull("s3://models", home=home)
    client.put_object(Bucket="models", Key="x/pytorch_model.bin", Body=b"pickle")
    with pytest.raises(UnsupportedCheckpoint, match="pickled"):
        pull("s3://models/x", home=home)


def test_a_store_that_is_away_is_said(
    client: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(SourceUnavailable, match="AWS_ENDPOINT_URL"):
        pull(SOURCE, home=home)


def test_missing_credentials_are_said(
    client: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SourceUnavailable, match="credentials"):
        pull(SOURCE, home=home)
