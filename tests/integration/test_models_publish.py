"""`headwater models publish`: boto3 as it is, against moto's server on loopback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from cache_tiers.rung import Rung
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.messages import WeightsOrder
from deployments.cli import main
from engine.checkpoints.pull import pull
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from engine.weights.from_source import SourceResult, bring_from_source
from tests.checkpoint_hashes import verify
from tests.unit.engine.checkpoints.published import publish

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PACKED = "packed-bfloat16-0-of-1.weights"
LIBRARY = "step-0123-gxx.so"
TARGET = "s3://models/team/tiny"

PARENT = """
import asyncio, sys
from pathlib import Path
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import WeightsOrder
from engine.weights.from_source import bring_from_source

async def never(_): pass

asyncio.run(bring_from_source(
    WeightsOrder("model", sys.argv[1], Rung.ON_DISK), home=Path(sys.argv[2]),
    scratch=Path(sys.argv[2]) / "scratch", open_files=lambda files: [], keep_on_disk=True,
    max_bytes_per_s=1000.0, on_memory=never,
))
"""


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
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model whose ranks have packed and compiled; its weights are of several parts."""
    home = tmp_path / "home"
    folder = publish(tmp_path / "tiny", num_shards=2, shard_bytes=10 << 20)
    checkpoint = pull(str(folder), home=home)
    (checkpoint.path / PACKED).write_bytes(b"packed")
    (home / "models" / ".compiled").mkdir()
    (home / "models" / ".compiled" / LIBRARY).write_bytes(b"library")
    monkeypatch.setenv("HEADWATER_HOME", str(home))
    return home


async def test_what_is_published_comes_to_a_cold_node_as_it_was(
    client: Any, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "publish", "tiny", TARGET]) == 0
    assert f"{TARGET}: 10 files, 0.02 GB" in capsys.readouterr().out
    files: list[ArrivingFile] = []
    results: list[SourceResult] = []

    async def keep(result: SourceResult) -> None:
        results.append(result)

    def open_files(wanted: Any) -> list[ArrivingFile]:
        files.extend(ArrivingFile.in_memory(file) for file in wanted)
        return files

    cold = tmp_path / "cold"
    await bring_from_source(
        WeightsOrder("tiny", TARGET, Rung.STAGED),
        home=cold,
        scratch=tmp_path / "scratch",
        open_files=open_files,
        keep_on_disk=True,
        max_bytes_per_s=None,
        on_memory=keep,
    )
    original = open_checkpoint(checkpoint_path(home, "tiny"))
    assert results[0].revision == original.revision
    assert {PACKED, f"compiled-{LIBRARY}"} <= {file.file.name for file in files}
    assert all(file.file.sha256 is not None for file in files)
    copy = open_checkpoint(checkpoint_path(cold, "tiny"))
    verify(copy)
    assert (copy.path / PACKED).read_bytes() == b"packed"
    assert not (cold / "models" / ".compiled").exists()  # it is code: only who is told to trusts it
    for file in files:
        file.close()


def test_what_cannot_be_published_is_one_line(
    client: Any, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "publish", "tiny", "s3://nowhere/tiny"]) == 1
    assert "Correct the bucket" in capsys.readouterr().err
    assert main(["models", "publish", "none", TARGET]) == 1
    assert "Pull the model first" in capsys.readouterr().err


def test_a_reader_dies_with_its_parent(client: Any, home: Path, tmp_path: Path) -> None:
    assert main(["models", "publish", "tiny", TARGET]) == 0
    command = [sys.executable, "-c", PARENT, TARGET, str(tmp_path / "other")]
    with subprocess.Popen(command) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while not children.read_text():
            assert parent.poll() is None
            time.sleep(0.01)
        [child] = children.read_text().split()
        parent.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 10
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
