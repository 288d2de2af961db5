"""Control groups as the kernel shows them in files, with the limits that containers see."""

from pathlib import Path

import psutil
import pytest

from engine.available_memory import available_memory_bytes

MIB = 1024 * 1024
V1_NO_LIMIT = "9223372036854771712"


def available(tmp_path: Path, cgroup: str, files: dict[str, str]) -> int:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return available_memory_bytes(proc=tmp_path / "proc", cgroups=tmp_path / "cgroup")


def v2(folder: str, limit: str, usage: int, inactive: int = 0) -> dict[str, str]:
    return {
        f"{folder}memory.max": f"{limit}\n",
        f"{folder}memory.current": f"{usage}\n",
        f"{folder}memory.stat": f"anon 1\ninactive_file {inactive}\n",
    }


def v1(folder: str, limit: str, usage: int, inactive: int = 0) -> dict[str, str]:
    return {
        f"memory/{folder}memory.limit_in_bytes": f"{limit}\n",
        f"memory/{folder}memory.usage_in_bytes": f"{usage}\n",
        f"memory/{folder}memory.stat": f"cache 5\ntotal_inactive_file {inactive}\n",
    }


def test_a_limit_of_version_2_leaves_what_is_unused_or_reclaimable(tmp_path: Path) -> None:
    files = v2("pod/", str(64 * MIB), 40 * MIB, 10 * MIB)
    assert available(tmp_path, "0::/pod\n", files) == 34 * MIB


def test_a_limit_of_version_1_counts_alike(tmp_path: Path) -> None:
    files = v1("docker/x/", str(64 * MIB), 40 * MIB, 10 * MIB)
    assert available(tmp_path, "9:cpu:/\n4:hugetlb,memory:/docker/x\n", files) == 34 * MIB


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    files = v2("pod/", str(32 * MIB), 31 * MIB) | v2("pod/app/", str(64 * MIB), 4 * MIB)
    assert available(tmp_path, "0::/pod/app\n", files) == MIB


def test_a_container_that_sees_its_own_group_as_the_root_is_bound_by_it(tmp_path: Path) -> None:
    files = v2("", str(64 * MIB), 60 * MIB)
    assert available(tmp_path, "0::/system.slice/docker-abc.scope\n", files) == 4 * MIB


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    assert available(tmp_path, "0::/pod\n", v2("pod/", str(MIB), 2 * MIB)) == 0


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/\n", {}),
        ("0::/pod\n", v2("pod/", "max", 5)),
        ("4:memory:/x\n", v1("x/", V1_NO_LIMIT, 5)),
        ("nonsense\n", {}),
    ],
    ids=["no files", "version 2", "version 1", "nonsense"],
)
def test_without_a_limit_the_machine_decides(
    tmp_path: Path, cgroup: str, files: dict[str, str]
) -> None:
    total = psutil.virtual_memory().total
    assert total // 100 < available(tmp_path, cgroup, files) <= total


def test_where_there_are_no_control_groups_the_machine_decides(tmp_path: Path) -> None:
    assert available_memory_bytes(proc=tmp_path, cgroups=tmp_path) > 0
