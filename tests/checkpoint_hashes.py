"""Proves a checkpoint's files, untouched ones included."""

from engine.checkpoints.manifest import sha256_of_file
from engine.checkpoints.store import Checkpoint


def verify(checkpoint: Checkpoint) -> None:
    """Hash every file and compare with the manifest."""
    for name, entry in checkpoint.manifest.files.items():
        assert sha256_of_file(checkpoint.path / name) == entry.sha256, name
