"""What can be known to be wrong with the weights of nodes before anything is started: memory and
disks, against each other and against the models that are on this machine.

Looks only. Must not know how weights are brought.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from cache_tiers.config import NodeCacheConfig
from deployments.faults import Fault, KeyPath
from deployments.serve_file import ServeFile
from engine.checkpoints.errors import CheckpointError
from engine.checkpoints.manifest import read_manifest
from engine.checkpoints.store import checkpoint_path

_MB = 10**6


def node_bytes(section: NodeCacheConfig) -> int:
    """CPU memory of a node, for KV and for weights."""
    return section.host_bytes + (0 if section.weights is None else section.weights.host_bytes)


def check_node_weights(file: ServeFile, home: Path, available_memory_bytes: int) -> Iterator[Fault]:
    """Of all the file's models; ``home``: where models are kept on this machine."""
    disk_bytes = shutil.disk_usage(_nearest(home)).total
    for model in file.models:
        section = model.args.node_cache
        if section is None or section.weights is None:
            continue
        weights, path = section.weights, (*model.path, "args", "node_cache", "weights")
        # More for KV alone is a fault of its own.
        if section.host_bytes <= available_memory_bytes < node_bytes(section):
            yield Fault(
                f"{weights.host_bytes // _MB} MB for weights beside "
                f"{section.host_bytes // _MB} MB for KV are more than the "
                f"{available_memory_bytes // _MB} MB that are free here: lower one of them",
                (*path, "host_bytes"),
            )
        if weights.disk_bytes is not None and weights.disk_bytes > disk_bytes:
            yield Fault(
                f"{weights.disk_bytes // _MB} MB are more than the {disk_bytes // _MB} MB of the "
                f"device that {home} is on: lower it",
                (*path, "disk_bytes"),
            )
        yield from _check_size(
            _weight_bytes(home, model.args.name), weights.host_bytes, weights.disk_bytes, path
        )


def _check_size(
    num_bytes: int, host_bytes: int, disk_bytes: int | None, path: KeyPath
) -> Iterator[Fault]:
    if 0 < host_bytes < num_bytes:
        yield Fault(
            f"{host_bytes // _MB} MB are less than the {num_bytes // _MB} MB of the model's "
            "weights, which would stay on disk: raise it, or set 0 to mean that",
            (*path, "host_bytes"),
        )
    if disk_bytes is not None and disk_bytes < num_bytes:
        yield Fault(
            f"{disk_bytes // _MB} MB are less than the {num_bytes // _MB} MB of the model's "
            "weights: raise it, or leave it out",
            (*path, "disk_bytes"),
        )


def _weight_bytes(home: Path, name: str) -> int:
    """0 for a model that is not here, or not sound: others say so."""
    try:
        files = read_manifest(checkpoint_path(home, name)).files
    except (CheckpointError, OSError):
        return 0
    return sum(entry.bytes for name, entry in files.items() if name.endswith(".safetensors"))


def _nearest(folder: Path) -> Path:
    """That exists."""
    while not folder.exists():
        folder = folder.parent
    return folder
