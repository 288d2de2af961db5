"""What can be known to be wrong with node caches before anything is started: memory and folders.

Looks only. Must not know what a cache keeps.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from cache_tiers.config import DiskConfig
from deployments.faults import Fault, KeyPath
from deployments.node_weights_check import node_bytes
from deployments.serve_file import ServeFile

_MIB = 1024 * 1024


def node_cache_bytes(file: ServeFile) -> int:
    """CPU memory of a node on which all of the file's models run: they share one cache."""
    sections = (model.args.node_cache for model in file.models)
    return max((node_bytes(section) for section in sections if section is not None), default=0)


def check_node_caches(file: ServeFile, available_memory_bytes: int) -> Iterator[Fault]:
    for model in file.models:
        section = model.args.node_cache
        if section is None:
            continue
        path = (*model.path, "args", "node_cache")
        if section.host_bytes > available_memory_bytes:
            yield Fault(
                f"{section.host_bytes // _MIB} MiB are more than the "
                f"{available_memory_bytes // _MIB} MiB that are free here: lower it",
                (*path, "host_bytes"),
            )
        yield from _check_disks(section.disks, (*path, "disks"))


def _check_disks(disks: tuple[DiskConfig, ...], path: KeyPath) -> Iterator[Fault]:
    seen: dict[Path, int] = {}
    for position, disk in enumerate(disks):
        where = (*path, position, "path")
        first = seen.setdefault(disk.path.resolve(), position)
        reason = _reason_against(disk.path)
        if first != position:
            yield Fault(f"is the folder of disks[{first}], too: each entry needs its own", where)
        elif reason is not None:
            yield Fault(reason, where)


def _reason_against(folder: Path) -> str | None:
    """Why a cache can't keep its files there; None if it can, or can make the folder."""
    if not folder.is_absolute():
        return f"{folder} must begin with /: replicas run in folders of their own"
    nearest = folder
    while not nearest.exists() and not nearest.is_symlink():
        nearest = nearest.parent
    if not nearest.is_dir():
        return f"{nearest} is no folder: remove it, or name another path"
    if not os.access(nearest, os.W_OK | os.X_OK):
        what = "can't be written" if nearest == folder else f"can't be made: {nearest} is read-only"
        return f"{folder} {what}; allow this user to, or name another path"
    return None
