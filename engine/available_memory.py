"""How much memory this process may still take: of the machine, and of the control groups that
bound it (containers, systemd slices)."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil


class _Files(NamedTuple):
    """Names in one version of control groups."""

    limit: str
    usage: str
    reclaimable: str
    """Key in memory.stat of file pages that the kernel gives up first; usage counts them."""


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def available_memory_bytes(
    *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int:
    """The least of what the machine has free and what each limit above this process leaves."""
    return min([psutil.virtual_memory().available, *_left_by_cgroups(proc, cgroups)])


def _left_by_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            groups = [(cgroups, _V2), (cgroups / "unified", _V2)]
        elif "memory" in controllers.split(","):
            groups = [(cgroups / "memory", _V1)]
        else:
            continue
        for root, files in groups:
            for folder in _with_parents(root, path):
                left = _left_in(folder, files)
                if left is not None:
                    yield left


def _with_parents(root: Path, path: str) -> Iterator[Path]:
    """Every group above counts, too. A container may see its own as the root, whatever its path
    says."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:depth])


def _left_in(folder: Path, files: _Files) -> int | None:
    """None if the group doesn't exist or sets no limit."""
    try:
        limit = (folder / files.limit).read_text().strip()
        if limit == "max":
            return None
        usage = int((folder / files.usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - usage + int(stat.get(files.reclaimable, 0)))
    except (OSError, ValueError):
        return None
