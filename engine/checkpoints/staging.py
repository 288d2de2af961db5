"""Puts a finished checkpoint folder in its place, all or nothing, one writer at a time.

    <home>/models/<name>/                    the checkpoint
    <home>/models/.staging/<name>/lock       held by the one that writes
                                  new/       being written; becomes <name>/ when it is on disk
                                  old/       the replaced checkpoint, between two renames
                                  scratch/   downloads

Whatever the holder of the lock finds there was left by a killed pull: ``new`` and ``scratch`` are
removed, and ``old`` is put back if there is no checkpoint. Knows nothing of what the files mean.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoints.store import checkpoint_path

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Staging:
    """The working folders of one pull; valid while its lock is held."""

    new: Path
    scratch: Path
    old: Path
    final: Path

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


@contextmanager
def staged(home: Path, name: str) -> Iterator[Staging]:
    """Wait for the lock on ``name``, clean up after killed pulls and lend empty working folders."""
    final = checkpoint_path(home, name)
    root = final.parent / ".staging" / name
    root.mkdir(parents=True, exist_ok=True)
    staging = Staging(root / "new", root / "scratch", root / "old", final)
    # The lock file stays: removing it would let two writers hold locks on two files of one name.
    with (root / "lock").open("w") as lock:
        _lock(lock.fileno(), name)
        if staging.old.exists() and not final.exists():
            staging.old.rename(final)
        _clean(staging)
        staging.new.mkdir()
        staging.scratch.mkdir()
        try:
            yield staging
        finally:
            _clean(staging)


def _lock(descriptor: int, name: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.warning("waiting for another process that pulls %s", name)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _clean(staging: Staging) -> None:
    for path in (staging.new, staging.scratch, staging.old):
        _remove(path)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
