import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest

from engine.checkpoints.pull import pull
from engine.checkpoints.staging import Staging, staged
from engine.checkpoints.store import checkpoint_path
from engine.weights.disk_models import DiskModels, has_moved, settle_on_disk, staging_of
from tests.unit.engine.checkpoints.published import publish
from tests.unit.engine.weights.parts import MODEL, Tiny, make_tiny


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return make_tiny(tmp_path)


def test_a_checkpoint_that_is_what_was_ordered_opens(tiny: Tiny, tmp_path: Path) -> None:
    disk = DiskModels(tmp_path / "home", disk_bytes=None)
    assert disk.open(tiny.order()) is None
    pull(str(tiny.source), name=MODEL, home=disk.home)
    stored = disk.open(tiny.order())
    assert stored is not None
    assert stored.copy.weights_sha256 == tiny.checkpoint.revision
    assert {file.name for file in stored.files} == set(tiny.contents)
    assert disk.is_there(stored.copy)


@pytest.mark.parametrize(
    "other", [{"source": "s3://bucket/other"}, {"weights_sha256": "0" * 64}], ids=str
)
def test_other_weights_of_the_same_name_are_none(
    tiny: Tiny, tmp_path: Path, other: dict[str, str]
) -> None:
    disk = DiskModels(tmp_path / "home", disk_bytes=None)
    pull(str(tiny.source), name=MODEL, home=disk.home)
    assert disk.open(msgspec.structs.replace(tiny.order(), **other)) is None


def test_a_copy_outlives_its_source(tiny: Tiny, tmp_path: Path) -> None:
    disk = DiskModels(tmp_path / "home", disk_bytes=None)
    pull(str(tiny.source), name=MODEL, home=disk.home)
    tiny.source.rename(tmp_path / "elsewhere-now")
    assert disk.open(tiny.order()) is not None


async def test_an_edited_source_has_moved_and_one_that_is_gone_has_not(tiny: Tiny) -> None:
    stamp = tiny.checkpoint.manifest.source_stamp
    assert not await has_moved(tiny.order(), stamp, 5.0)
    (tiny.source / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert await has_moved(tiny.order(), stamp, 5.0)
    pinned = msgspec.structs.replace(tiny.order(), weights_sha256=tiny.checkpoint.revision)
    assert not await has_moved(pinned, stamp, 5.0)
    tiny.source.rename(tiny.source.with_name("gone"))
    assert not await has_moved(tiny.order(), stamp, 5.0)


async def test_breaking_off_the_wait_for_a_lock_leaves_the_lock_to_others(tmp_path: Path) -> None:
    async def wait() -> None:
        async with staging_of(tmp_path, MODEL):
            raise AssertionError("another one has the lock")

    with staged(tmp_path, MODEL):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(5), staging_of(tmp_path, MODEL) as staging:
        assert staging.new.is_dir()


async def test_breaking_off_waits_for_a_checkpoint_that_is_being_put_in_its_place(
    tiny: Tiny, tmp_path: Path
) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    class Slow(Staging):
        def commit(self) -> None:
            began.set()
            assert may_go_on.wait(5)
            Staging.commit(self)

    async def settle() -> None:
        async with staging_of(tmp_path, MODEL) as staging:
            slow = Slow(staging.root, staging.final)
            await settle_on_disk(slow, tiny.checkpoint.manifest, b"{}", ())

    settling = asyncio.create_task(settle())
    await asyncio.to_thread(began.wait, 5)
    settling.cancel()
    await asyncio.sleep(0.05)
    assert not settling.done()  # the lock is held, and nothing is cleared away
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert (tmp_path / "models" / MODEL / "headwater.json").exists()


class Store:
    """Three models of 100 kB that were brought, ``c`` least recently, and one that was not."""

    def __init__(self, folder: Path, disk_bytes: int) -> None:
        self.disk = DiskModels(folder / "home", disk_bytes=disk_bytes)
        for name in ("a", "b", "c", "own"):
            source = publish(folder / name, shard_bytes=100_000)
            pull(str(source), name=name, home=self.disk.home)
        for age_s, name in enumerate(("a", "b", "c")):
            self.disk.note_brought(name)
            marker = self.disk.home / "models" / ".brought" / name
            os.utime(marker, (1000 - age_s, 1000 - age_s))

    @property
    def names(self) -> set[str]:
        return {
            name
            for name in ("a", "b", "c", "own")
            if checkpoint_path(self.disk.home, name).exists()
        }


def test_the_longest_unused_brought_models_leave_until_the_store_is_in_bounds(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, disk_bytes=250_000)
    assert store.disk.trim(lambda _: False) == ["c", "b"]
    assert store.names == {"a", "own"}


def test_a_model_in_use_or_of_the_user_stays_whatever_the_bound(tmp_path: Path) -> None:
    store = Store(tmp_path, disk_bytes=0)
    assert store.disk.trim(lambda name: name == "c") == ["b", "a"]
    assert store.names == {"c", "own"}


def test_a_use_makes_a_model_the_last_to_leave(tmp_path: Path) -> None:
    store = Store(tmp_path, disk_bytes=350_000)
    store.disk.note_use("c")
    assert store.disk.trim(lambda _: False) == ["b"]


def test_without_a_bound_nothing_leaves(tmp_path: Path) -> None:
    store = Store(tmp_path, disk_bytes=10**9)
    assert store.disk.trim(lambda _: False) == []
    assert store.names == {"a", "b", "c", "own"}
