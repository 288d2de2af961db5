"""The models on this machine: what there is, and how one is removed.

Knows the store's folders; brings and runs nothing.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.checkpoints.errors import CheckpointError, MissingCheckpoint, StoreUnavailable
from engine.checkpoints.manifest import read_manifest
from engine.checkpoints.staging import staged, staging_root
from engine.checkpoints.store import Checkpoint, checkpoint_path, open_checkpoint


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One name in the store."""

    name: str
    num_bytes: int
    """On the disk; a file that is linked elsewhere counts, too."""
    source: str | None
    checkpoint: Checkpoint | None
    """None if it is damaged or not complete."""
    problem: str | None
    """Why there is no checkpoint."""


def list_models(home: Path) -> list[StoredModel]:
    """Every model in the store by name, damaged and incomplete ones included."""
    complete = {path.name for path in _folders(home / "models")}
    pulled = {path.name for path in _folders(staging_root(home, "lock").parent)}
    begun = {name for name in pulled - complete if _tree_bytes(_downloads(home, name))}
    return [
        _look_at(home, name) if name in complete else _incomplete(home, name)
        for name in sorted(complete | begun)
    ]


def remove_model(home: Path, name: str) -> None:
    """Remove a model, or what was downloaded of it; waits for a pull of the same name.

    Processes that have it mapped keep it until they end. Raises `MissingCheckpoint` for a name that
    isn't in the store, `StoreUnavailable` if the folder can't be written.
    """
    names = [model.name for model in list_models(home)]
    if name not in names:
        known = f"there are {', '.join(names)}" if names else "there are none"
        raise MissingCheckpoint(f"no model is called {name!r} in {home}: {known}.")
    try:
        with staged(home, name) as staging:
            staging.remove()
    except OSError as error:
        raise StoreUnavailable(f"cannot remove {name} from {home} ({error}).") from error


def _look_at(home: Path, name: str) -> StoredModel:
    path = checkpoint_path(home, name)
    num_bytes = _tree_bytes(path)
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        return StoredModel(name, num_bytes, _source(path), None, str(error))
    return StoredModel(name, num_bytes, checkpoint.manifest.source, checkpoint, None)


def _incomplete(home: Path, name: str) -> StoredModel:
    problem = "its pull is going on or was broken off: pull it again to go on, or remove it"
    return StoredModel(name, _tree_bytes(_downloads(home, name)), None, None, problem)


def _source(path: Path) -> str | None:
    try:
        return read_manifest(path).source
    except CheckpointError:
        return None


def _downloads(home: Path, name: str) -> Path:
    return staging_root(home, name) / "downloads"


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _tree_bytes(folder: Path) -> int:
    """Of what is allocated, not of holes that a download hasn't filled yet."""
    try:
        return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    except FileNotFoundError:  # a pull is at work there
        return 0
