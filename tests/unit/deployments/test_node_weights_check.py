"""`headwater check` and the weights of nodes: memory, disks, and models that are here already."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployments.node_weights_check import check_node_weights
from engine.checkpoints.manifest import FileEntry, Manifest, write_manifest
from tests.unit.deployments.test_node_cache_check import file_with

GB = 10**9
AVAILABLE_BYTES = 8 * GB


def keep(home: Path, *sizes_bytes: int) -> None:
    """A model whose files are only said to be there."""
    folder = home / "models" / "m"
    folder.mkdir(parents=True)
    entry = FileEntry(bytes=1, sha256="0" * 64, mtime_ns=0)
    files = {
        f"model-{number}.safetensors": msgspec.structs.replace(entry, bytes=size)
        for number, size in enumerate(sizes_bytes)
    }
    write_manifest(folder, Manifest("s3://b/m", "", "", {"config.json": entry, **files}, "", 1))


def faults(home: Path, weights: dict[str, Any], *, kv_bytes: int = GB) -> list[str]:
    file = file_with(home, {"host_bytes": kv_bytes, "weights": weights})
    found = [str(fault) for fault in check_node_weights(file, home, AVAILABLE_BYTES)]
    prefix = "applications[0].args.node_cache.weights."
    assert all(fault.startswith(prefix) for fault in found)
    return [fault.removeprefix(prefix) for fault in found]


def test_what_fits_is_fine(tmp_path: Path) -> None:
    keep(tmp_path, GB, GB)
    assert faults(tmp_path, {"host_bytes": 2 * GB, "disk_bytes": 2 * GB}) == []
    assert faults(tmp_path, {}) == []


def test_a_model_that_is_not_here_yet_is_fine(tmp_path: Path) -> None:
    assert faults(tmp_path, {"host_bytes": 1}) == []


def test_more_memory_than_is_free_beside_that_for_kv_is_a_fault(tmp_path: Path) -> None:
    [fault] = faults(tmp_path, {"host_bytes": 6 * GB}, kv_bytes=3 * GB)
    assert fault == (
        "host_bytes: 6000 MB for weights beside 3000 MB for KV are more than the 8000 MB that are "
        "free here: lower one of them"
    )


@pytest.mark.parametrize(("host_bytes", "is_fault"), [(0, False), (GB, True), (2 * GB, False)])
def test_a_model_that_does_not_fit_into_the_memory_for_weights_is_a_fault(
    tmp_path: Path, host_bytes: int, is_fault: bool
) -> None:
    keep(tmp_path, GB, GB)
    found = faults(tmp_path, {"host_bytes": host_bytes})
    assert len(found) == is_fault
    assert not found or found[0].startswith("host_bytes: 1000 MB are less than the 2000 MB of the")


def test_a_model_that_does_not_fit_onto_the_disk_is_a_fault(tmp_path: Path) -> None:
    keep(tmp_path, GB, GB)
    [fault] = faults(tmp_path, {"disk_bytes": GB})
    assert fault.startswith("disk_bytes: 1000 MB are less than the 2000 MB of the model's weights")


def test_more_disk_than_there_is_is_a_fault(tmp_path: Path) -> None:
    [fault] = faults(tmp_path, {"disk_bytes": 10**18})
    assert "disk_bytes: 1000000000000 MB are more than the " in fault
    assert f"MB of the device that {tmp_path} is on: lower it" in fault
