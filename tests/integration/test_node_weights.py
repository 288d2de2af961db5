"""Nodes' weights with real files: from disk, peers and sources, up and down, and after kill -9."""

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.checkpoints.pull import pull
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from tests.checkpoint_hashes import verify
from tests.integration.node_weights_process import NodeWeightsProcess
from tests.unit.engine.checkpoints.published import edit_json, publish

pytestmark = pytest.mark.integration

MIB = 1 << 20
MODEL = "tiny"
COLD, ON_DISK, STAGED = 0, 1, 2


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return publish(tmp_path / MODEL, num_shards=2, shard_bytes=20 * MIB + 12_345)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeWeightsProcess]:
    with NodeWeightsProcess(tmp_path / "a") as process:
        yield process


def order(source: Path, rung: int = STAGED, **other: Any) -> dict[str, Any]:
    return {"model": MODEL, "source": str(source), "rung": rung, **other}


def check(folder: str | Path) -> None:
    """That all of it is right."""
    verify(open_checkpoint(Path(folder)))


def test_a_model_on_the_disk_is_staged_and_leaves_memory_when_nobody_wants_it(
    source: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    pull(str(source), name=MODEL, home=home)
    with NodeWeightsProcess(tmp_path / "a", home=home) as node:
        state = node.reach(order(source))

        assert (state["rung"], state["origin"], state["failure"]) == (STAGED, "disk", None)
        assert Path(state["folder"]).is_relative_to(node.folder)
        check(state["folder"])
        assert (Path(state["folder"]) / "model-00001-of-00002.safetensors").is_symlink()
        assert state["stages"][0][0] == "read from disk"

        node.lease(MODEL, "replica")
        node.order(order(source, COLD))
        time.sleep(0.7)
        assert node.state(MODEL)["rung"] == STAGED  # somebody uses it
        check(state["folder"])
        node.release(MODEL, "replica")
        node.wait_for(MODEL, rung=ON_DISK)
        assert node.report()["used_bytes"] == 0
        assert not Path(state["folder"]).exists()


def test_a_model_from_its_source_is_staged_and_then_on_the_disk(
    source: Path, node: NodeWeightsProcess
) -> None:
    state = node.reach(order(source))

    assert (state["rung"], state["origin"], state["failure"]) == (STAGED, "source", None)
    check(state["folder"])
    kept = checkpoint_path(node.home, MODEL)
    ends_s = time.monotonic() + 20
    while not kept.exists() and time.monotonic() < ends_s:
        time.sleep(0.02)
    check(kept)


def test_a_model_comes_from_another_node_and_is_kept_on_the_disk(
    source: Path, node: NodeWeightsProcess, tmp_path: Path
) -> None:
    revision = node.reach(order(source))["revision"]
    shutil.rmtree(source)  # nobody can have it from there
    with NodeWeightsProcess(tmp_path / "b") as second:
        state = second.reach(order(source, parents=[node.address]))

        assert (state["rung"], state["origin"]) == (STAGED, "peer"), state
        assert state["revision"] == revision
        check(state["folder"])
        kept = checkpoint_path(second.home, MODEL)
        ends_s = time.monotonic() + 20
        while not kept.exists() and time.monotonic() < ends_s:
            time.sleep(0.02)
        check(kept)


def test_nodes_that_are_ordered_at_once_form_a_chain(source: Path, tmp_path: Path) -> None:
    with (
        NodeWeightsProcess(tmp_path / "a", max_bytes_per_s=20 * MIB) as first,
        # Who would read the source as well would take a minute.
        NodeWeightsProcess(tmp_path / "b", max_bytes_per_s=MIB) as second,
        NodeWeightsProcess(tmp_path / "c", max_bytes_per_s=MIB) as third,
    ):
        third.order(order(source, parents=[second.address, first.address]))
        second.order(order(source, parents=[first.address]))
        first.order(order(source))
        began_s = time.monotonic()
        first.wait_for(MODEL, rung=STAGED)
        alone_s = time.monotonic() - began_s
        states = [node.wait_for(MODEL, rung=STAGED) for node in (second, third)]

        assert [state["origin"] for state in states] == ["peer", "peer"]
        assert time.monotonic() - began_s < alone_s + 3.0
        for state in states:
            check(state["folder"])


def test_a_node_that_dies_is_passed_by(source: Path, tmp_path: Path) -> None:
    first = NodeWeightsProcess(tmp_path / "a", max_bytes_per_s=10 * MIB)
    with NodeWeightsProcess(tmp_path / "b") as second:
        first.order(order(source))
        second.order(order(source, parents=[first.address]))
        while not second.state(MODEL)["num_done_bytes"]:
            time.sleep(0.02)
        first.kill()
        state = second.reach(order(source, parents=[first.address]))

        assert (state["rung"], state["origin"]) == (STAGED, "source"), state
        check(state["folder"])


def test_a_disk_gets_it_from_the_disk_of_another_node(source: Path, tmp_path: Path) -> None:
    with (
        NodeWeightsProcess(tmp_path / "a", host_bytes=0) as first,
        NodeWeightsProcess(tmp_path / "b", host_bytes=0) as second,
    ):
        first.reach(order(source, ON_DISK))
        shutil.rmtree(source)
        state = second.reach(order(source, ON_DISK, parents=[first.address]))

        assert (state["rung"], state["origin"]) == (ON_DISK, "peer"), state
        check(state["folder"])
        check(checkpoint_path(first.home, MODEL))


def test_too_little_memory_leaves_it_on_the_disk_and_says_so(source: Path, tmp_path: Path) -> None:
    with NodeWeightsProcess(tmp_path / "a", host_bytes=30 * MIB) as node:
        state = node.reach(order(source))

        assert state["rung"] == ON_DISK
        assert "host_bytes" in state["failure"]
        check(state["folder"])


def test_a_wrong_pin_ends_it(source: Path, node: NodeWeightsProcess) -> None:
    state = node.reach(order(source, weights_sha256="0" * 64))

    assert (state["rung"], state["folder"]) == (COLD, "")
    assert "pin" in state["failure"]
    assert not checkpoint_path(node.home, MODEL).exists()


def test_a_flipped_bit_on_the_disk_is_never_staged(source: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    stored = pull(str(source), name=MODEL, home=home)
    damaged = stored.weights_paths[0]
    before = damaged.stat()
    with damaged.open("r+b") as file:
        file.seek(10 * MIB)
        byte = file.read(1)[0]
        file.seek(10 * MIB)
        file.write(bytes([byte ^ 1]))
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a failing disk does it
    with NodeWeightsProcess(tmp_path / "a", home=home) as node:
        state = node.reach(order(source))

        assert (state["rung"], state["origin"]) == (STAGED, "source"), state
        check(state["folder"])


def test_an_edited_source_is_brought_beside_what_a_replica_uses(
    source: Path, node: NodeWeightsProcess
) -> None:
    old = node.reach(order(source))
    node.lease(MODEL, "replica")
    node.wait_for(MODEL, rung=STAGED)
    edit_json(source / "generation_config.json", temperature=0.25)
    new = node.reach(order(source))

    assert new["rung"] == STAGED
    assert new["folder"] != old["folder"]
    check(new["folder"])
    assert open_checkpoint(Path(new["folder"])).sampling_defaults.temperature == 0.25
    check(old["folder"])
    node.lease(MODEL, "replica")
    node.release(MODEL, "replica")
    ends_s = time.monotonic() + 10
    while Path(old["folder"]).exists() and time.monotonic() < ends_s:
        time.sleep(0.02)
    assert not Path(old["folder"]).exists()


def test_what_a_rank_packs_serves_the_next_ones(source: Path, node: NodeWeightsProcess) -> None:
    state = node.reach(order(source))
    kept = checkpoint_path(node.home, MODEL)
    packed = Path(state["folder"]) / "packed-bfloat16-0-of-1.weights"
    ends_s = time.monotonic() + 20
    while not kept.exists() and time.monotonic() < ends_s:
        time.sleep(0.02)
    node.lease(MODEL, "replica")
    packed.write_bytes(bytes(range(256)) * 4096)
    while not packed.is_symlink() and time.monotonic() < ends_s:
        node.lease(MODEL, "replica")
        time.sleep(0.02)

    assert packed.is_symlink()
    assert packed.read_bytes() == bytes(range(256)) * 4096
    while not (kept / packed.name).exists() and time.monotonic() < ends_s:
        time.sleep(0.02)
    assert (kept / packed.name).read_bytes() == packed.read_bytes()


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_node_leaves_only_whole_models(source: Path, tmp_path: Path, seed: int) -> None:
    wait_s = random.Random(seed).uniform(0.0, 0.8)
    first = NodeWeightsProcess(tmp_path / "a")
    first.tell({"type": "order", "order": order(source)})
    time.sleep(wait_s)
    children = first.children
    first.kill()
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() for child in children)

    kept = checkpoint_path(first.home, MODEL)
    if kept.exists():
        check(kept)
    with NodeWeightsProcess(tmp_path / "a") as second:
        folders = [path.parent for path in second.folder.rglob("headwater.json")]
        assert not folders
        state = second.reach(order(source))
        assert state["rung"] == STAGED, state
        check(state["folder"])


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_reader_of_the_source_is_started_again(
    source: Path, node: NodeWeightsProcess, seed: int
) -> None:
    node.order(order(source))
    time.sleep(random.Random(seed).uniform(0.0, 0.5))
    for child in node.children:
        child.kill()
    state = node.reach(order(source))

    assert state["rung"] == STAGED, state
    check(state["folder"])


def test_a_start_gets_the_memory_of_a_model_that_nobody_uses(source: Path, tmp_path: Path) -> None:
    other = publish(tmp_path / "other", num_shards=2, shard_bytes=20 * MIB)
    second = {"model": "other", "source": str(other), "rung": STAGED}
    with NodeWeightsProcess(tmp_path / "a", host_bytes=60 * MIB) as node:
        first = node.reach(order(source))
        node.lease(MODEL, "replica")
        refused = node.reach(second)
        assert refused["rung"] == ON_DISK
        assert "host_bytes" in refused["failure"]
        check(first["folder"])

        node.release(MODEL, "replica")
        state = node.reach(second)
        assert (state["rung"], state["failure"]) == (STAGED, None), state
        check(state["folder"])
        assert node.state(MODEL)["rung"] == ON_DISK
        assert not Path(first["folder"]).exists()


def test_a_staged_folder_that_was_swept_away_is_made_anew(
    source: Path, node: NodeWeightsProcess
) -> None:
    first = node.reach(order(source))
    shutil.rmtree(first["folder"])
    second = node.reach(order(source))
    assert second["rung"] == STAGED
    check(second["folder"])
