"""Puts a finished checkpoint folder in its place, all or nothing, one writer at a time.

    <home>/models/<name>/                    the checkpoint
    <home>/models/.staging/<name>/lock       held by the one that writes
                                  new/       being written; becomes <name>/ when it is on disk
                                  old/       the replaced checkpoint, between two renames
                                  removed/   the removed checkpoint, while it is deleted
                                  downloads/<version>/

Whatever the holder of the lock finds there was left by a killed process: ``new`` and ``removed``
are deleted, ``old`` is put back if there is no checkpoint, and the downloads of the same version
are used. Knows nothing of what the files mean.
"""

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoints.store import checkpoint_path

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Staging:
    """The working folders of one name; valid while its lock is held."""

    root: Path
    final: Path

    @property
    def new(self) -> Path:
        return self.root / "new"

    @property
    def old(self) -> Path:
        return self.root / "old"

    @property
    def removed(self) -> Path:
        return self.root / "removed"

    @property
    def downloads(self) -> Path:
        return self.root / "downloads"

    def open_downloads(self, version: str) -> Path:
        """The download folder of one version of one source; those of others are deleted."""
        kept = self.downloads / folder_of_version(version)
        kept.mkdir(parents=True, exist_ok=True)
        for path in self.downloads.iterdir():
            if path != kept:
                _remove(path)
        return kept

    def commit(self) -> None:
        """Flush ``new`` to disk and make it the checkpoint; readers of an old one keep it."""
        for path in self.new.iterdir():
            _flush(path)
        _flush(self.new)
        if self.final.exists():
            self.final.rename(self.old)
        self.new.rename(self.final)
        _flush(self.final.parent)
        _remove(self.old)
        self.discard_downloads()

    def discard_downloads(self) -> None:
        """Delete them: they are used up, or found to be bad."""
        _remove(self.downloads)

    def remove(self) -> None:
        """Delete the checkpoint, at once for everyone who looks, and all downloads for it."""
        if os.path.lexists(self.final):
            self.final.rename(self.removed)
            _flush(self.final.parent)
        _remove(self.removed)
        self.discard_downloads()


def folder_of_version(version: str) -> str:
    """Name of the download folder of one version of one source."""
    return hashlib.sha256(version.encode()).hexdigest()[:32]


def staging_root(home: Path, name: str) -> Path:
    """Where the working folders of ``name`` are."""
    return home / "models" / ".staging" / name


@contextmanager
def staged(home: Path, name: str) -> Iterator[Staging]:
    """Wait for the lock on ``name``, clean up after the killed and lend an empty ``new``."""
    root = staging_root(home, name)
    root.mkdir(parents=True, exist_ok=True)
    staging = Staging(root, checkpoint_path(home, name))
    # The lock file stays: removing it would let two writers hold locks on two files of one name.
    with (root / "lock").open("w") as lock:
        _lock(lock.fileno(), name)
        if staging.old.exists() and not staging.final.exists():
            staging.old.rename(staging.final)
        _clean(staging)
        staging.new.mkdir()
        try:
            yield staging
        finally:
            _clean(staging)


def clean_up(home: Path, name: str) -> None:
    """Delete what was left by a pull that was killed right after its commit.

    Does nothing while somebody is at work on ``name``, or where the folder can't be written.
    """
    root = staging_root(home, name)
    staging = Staging(root, checkpoint_path(home, name))
    if not staging.downloads.exists() and not staging.old.exists():
        return
    with suppress(OSError), (root / "lock").open("w") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if staging.final.exists():
            _clean(staging)
            staging.discard_downloads()


def _lock(descriptor: int, name: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.warning("waiting for another process that pulls or removes %s", name)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _clean(staging: Staging) -> None:
    for path in (staging.new, staging.old, staging.removed):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
