"""Weights from an object store into memory, by the child process; and all that may go wrong."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import msgspec
import psutil
import pytest
from botocore.config import Config

from cache_tiers.rung import Rung
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom, OriginFailed, WeightsError, WrongWeights
from cache_tiers.weights.messages import WeightFile, WeightsOrder
from engine.checkpoints import transfer as transfer_module
from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.manifest import Manifest
from engine.checkpoints.pull import pull, pull_from
from engine.checkpoints.s3 import S3Source
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from engine.weights.from_source import SourceProgress, SourceResult, bring_from_source
from tests.checkpoint_hashes import verify
from tests.integration.faulty_store import BUCKET, FaultyStore, faulty_store
from tests.unit.engine.checkpoints.published import publish

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MIB = 1 << 20
SOURCE = f"s3://{BUCKET}/model"
SHARD = "model-00001-of-00002.safetensors"


@dataclass
class Node:
    """What NodeWeights does with a model that comes, as far as a source is concerned."""

    root: Path
    files: list[ArrivingFile] = field(default_factory=list)
    results: list[SourceResult] = field(default_factory=list)
    progress: list[SourceProgress] = field(default_factory=list)
    has_room: bool = True

    @property
    def home(self) -> Path:
        return self.root / "home"

    async def bring(
        self,
        *,
        source: str = SOURCE,
        rung: Rung = Rung.STAGED,
        keep_on_disk: bool = False,
        max_bytes_per_s: float | None = None,
        source_sha256: str | None = None,
        weights_sha256: str | None = None,
    ) -> None:
        await bring_from_source(
            WeightsOrder("model", source, rung, source_sha256, weights_sha256),
            home=self.home,
            scratch=self.root / "scratch",
            open_files=self._open,
            keep_on_disk=keep_on_disk,
            max_bytes_per_s=max_bytes_per_s,
            on_memory=self._seal,
            on_progress=self.progress.append,
        )

    @property
    def arrived_bytes(self) -> int:
        return sum(file.num_arrived_bytes for file in self.files)

    def content(self, name: str) -> bytes:
        [file] = [file for file in self.files if file.file.name == name]
        return Path(f"/proc/self/fd/{file.fd}").read_bytes()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _open(self, files: Sequence[WeightFile]) -> Sequence[ArrivingFile]:
        if not self.has_room:
            raise NoRoom("host_bytes is too small")
        if not self.files:
            self.files.extend(ArrivingFile.in_memory(file) for file in files)
        return self.files

    async def _seal(self, result: SourceResult) -> None:
        self.results.append(result)
        for file in self.files:
            file.seal()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return publish(tmp_path / "published", num_shards=2, shard_bytes=20 * MIB)


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    with faulty_store(folder) as store:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield store


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path / "node")
    yield node
    node.close()


def children() -> list[int]:
    """Of this process: those that read a source."""
    return [child.pid for child in psutil.Process().children() if _reads_a_source(child)]


def _reads_a_source(child: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return "engine.weights.source_process" in child.cmdline()
    return False


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  of another process's doing
        await asyncio.sleep(0.001)


async def until_arrived(node: Node, num_bytes: int) -> None:
    await until(lambda: node.arrived_bytes >= num_bytes)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


async def test_a_model_is_in_memory_first_and_then_on_the_disk(
    store: FaultyStore, folder: Path, node: Node
) -> None:
    await node.bring(keep_on_disk=True)

    [result] = node.results
    assert not result.is_on_disk_only
    assert [stage.name for stage in result.stages] == ["listing", "description", "source", "check"]
    manifest = msgspec.json.decode(result.manifest, type=Manifest)
    assert {file.file.name for file in node.files} == manifest.files.keys()
    assert node.content(SHARD) == (folder / SHARD).read_bytes()
    checkpoint = open_checkpoint(checkpoint_path(node.home, "model"))
    verify(checkpoint)
    assert checkpoint.revision == result.revision
    assert any(item.is_to_disk for item in node.progress)
    assert children() == []


async def test_an_order_for_the_disk_opens_no_memory(store: FaultyStore, node: Node) -> None:
    await node.bring(rung=Rung.ON_DISK)
    [result] = node.results
    assert (result.is_on_disk_only, node.files) == (True, [])
    verify(open_checkpoint(checkpoint_path(node.home, "model")))


async def test_a_folder_is_read_into_memory(folder: Path, node: Node) -> None:
    await node.bring(source=str(folder))
    assert node.content(SHARD) == (folder / SHARD).read_bytes()


async def test_a_rate_is_kept(store: FaultyStore, node: Node) -> None:
    await node.bring(max_bytes_per_s=20 * MIB)
    [result] = node.results
    [took_s] = [stage.time_s for stage in result.stages if stage.name == "source"]
    assert 1.5 < took_s < 15


@pytest.mark.parametrize("arrived_bytes", [0, 9 * MIB, 30 * MIB])
async def test_a_child_that_is_killed_is_followed_by_one_that_goes_on(
    store: FaultyStore, folder: Path, node: Node, arrived_bytes: int
) -> None:
    store.piece_pause_s = 0.005
    task = asyncio.create_task(node.bring(keep_on_disk=True))
    await until_arrived(node, max(1, arrived_bytes))
    [child] = children()
    os.kill(child, signal.SIGKILL)
    store.piece_pause_s = 0.0
    await task

    assert len(node.results) == 1
    assert store.sent_bytes < 2 * size_of(folder) - arrived_bytes // 2
    assert node.content(SHARD) == (folder / SHARD).read_bytes()
    verify(open_checkpoint(checkpoint_path(node.home, "model")))


async def test_a_child_that_dies_while_it_writes_the_disk_is_followed_by_one_that_goes_on(
    store: FaultyStore, folder: Path, node: Node
) -> None:
    task = asyncio.create_task(node.bring(keep_on_disk=True))
    await until(lambda: node.results)
    [child] = children()
    os.kill(child, signal.SIGKILL)
    await task
    assert len(node.results) == 1
    assert store.sent_bytes < 1.5 * size_of(folder), "memory has it"
    verify(open_checkpoint(checkpoint_path(node.home, "model")))


async def test_who_stops_waiting_leaves_no_process(store: FaultyStore, node: Node) -> None:
    store.piece_pause_s = 0.01
    task = asyncio.create_task(node.bring())
    await until_arrived(node, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == []


async def test_too_little_memory_is_the_callers_word_and_leaves_no_process(
    store: FaultyStore, node: Node
) -> None:
    node.has_room = False
    with pytest.raises(NoRoom, match="host_bytes"):
        await node.bring()
    assert children() == []
    await node.bring(rung=Rung.ON_DISK)
    verify(open_checkpoint(checkpoint_path(node.home, "model")))


async def failure_of(node: Node, kind: type[WeightsError]) -> str:
    with pytest.raises(kind) as caught:
        await node.bring(keep_on_disk=True)
    message = str(caught.value)
    assert (node.results, "\n" in message) == ([], False)
    assert not checkpoint_path(node.home, "model").exists()
    return message


async def test_expired_credentials_are_said(store: FaultyStore, node: Node) -> None:
    store.refuse_with = 403
    assert "Check the credentials" in await failure_of(node, OriginFailed)


async def test_a_wrong_bucket_is_said(store: FaultyStore, node: Node) -> None:
    store.refuse_with = 404
    assert "Correct the bucket or the prefix" in await failure_of(node, OriginFailed)


async def test_a_store_that_is_away_is_said(
    store: FaultyStore, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "AWS_ENDPOINT_URL" in await failure_of(node, OriginFailed)


async def test_a_store_that_is_busy_for_a_while_is_asked_again(
    store: FaultyStore, folder: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_MAX_ATTEMPTS")
    store.busy_times, store.cut_times = 12, 3
    await node.bring()
    assert (store.busy_times, store.cut_times) == (0, 0)
    assert node.content(SHARD) == (folder / SHARD).read_bytes()


async def test_an_index_that_lies_is_said(store: FaultyStore, folder: Path, node: Node) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "names model-00002" in await failure_of(node, OriginFailed)


async def test_a_hash_that_is_not_the_pinned_one_is_said(store: FaultyStore, node: Node) -> None:
    with pytest.raises(WrongWeights, match="is pinned"):
        await node.bring(weights_sha256="0" * 64)
    with pytest.raises(WrongWeights, match="is pinned"):
        await node.bring(source_sha256="0" * 64)
    assert node.results == []


async def test_an_object_that_is_replaced_meanwhile_is_said(
    store: FaultyStore, folder: Path, node: Node
) -> None:
    store.after_listing = lambda: (folder / SHARD).write_bytes(bytes(20 * MIB))
    assert "was changed while it was downloaded" in await failure_of(node, OriginFailed)


async def test_a_bit_that_flips_on_the_way_is_found_and_the_next_attempt_is_right(
    folder: Path, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: FaultyStore
) -> None:
    store.folder = pull(str(folder), name="made", home=tmp_path / "maker").path
    store.flip_in = SHARD
    assert f"{SHARD} arrived with sha256" in await failure_of(node, OriginFailed)
    store.flip_in = None
    node.close()
    node.files.clear()
    await node.bring()
    assert node.content(SHARD) == (folder / SHARD).read_bytes()


async def test_a_disk_that_cannot_be_written_is_said_once_memory_has_it(
    store: FaultyStore, folder: Path, node: Node
) -> None:
    node.root.mkdir()
    node.home.write_text("in the way")
    with pytest.raises(NoRoom, match="cannot bring the model to"):
        await node.bring(keep_on_disk=True)
    assert len(node.results) == 1
    assert node.content(SHARD) == (folder / SHARD).read_bytes()


async def test_another_revision_under_the_name_replaces_the_first_as_a_whole(
    store: FaultyStore, folder: Path, node: Node, tmp_path: Path
) -> None:
    await node.bring(keep_on_disk=True)
    node.close()
    node.files.clear()
    store.folder = publish(tmp_path / "other", num_shards=1, shard_bytes=3 * MIB)
    await node.bring(keep_on_disk=True)

    first, second = node.results
    assert first.revision != second.revision
    checkpoint = open_checkpoint(checkpoint_path(node.home, "model"))
    verify(checkpoint)
    assert checkpoint.revision == second.revision


def impatient(url: str) -> S3Source:
    config = Config(read_timeout=0.3, retries={"total_max_attempts": 1})
    return S3Source.parse(
        SOURCE.removeprefix("s3:"),
        connect=lambda: boto3.session.Session().client("s3", endpoint_url=url, config=config),
    )


def test_a_store_that_stalls_is_asked_again(store: FaultyStore, tmp_path: Path) -> None:
    store.stall_times = 3
    verify(pull_from(impatient(store.url), home=tmp_path / "home"))
    assert store.stall_times == 0


def test_a_store_that_goes_on_stalling_or_refusing_ends_in_bounded_time(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_module, "_FIRST_PAUSE_S", 0.01)
    source = impatient(store.url)
    source.stamp()
    store.busy_times = 1_000_000
    (tmp_path / "new").mkdir()
    began_s = time.monotonic()
    with pytest.raises(SourceUnavailable, match=r"breaks off again and again.*SlowDown"):
        source.fetch(tmp_path / "scratch", tmp_path / "new", sha256=None)
    assert time.monotonic() - began_s < 20
