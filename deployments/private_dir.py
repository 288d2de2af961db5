"""Short-lived folders of one process, and the removal of those whose process was killed.

A folder holds a lock file that its owner keeps locked. The kernel lets go of the lock with the
last process that has it open, also after `kill -9`, so whoever can take it knows that the folder
is abandoned. A process id in its place could be another process's by now, or of another container
that shares the folder above. Knows nothing of what is put into the folder.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

PREFIX = "hw-"
LOCK_NAME = "owner.lock"
_RANDOM_LEN = 8
"""What `mkdtemp` appends."""


class PrivateDir:
    """A new folder in one of `roots`, readable by this user alone.

    Unix sockets in it limit the length of its path, so the first root that leads to at most
    `max_bytes` is taken. Raises `ValueError` if there is none. Removes abandoned folders beside it.
    """

    def __init__(self, roots: Sequence[Path], *, max_bytes: int) -> None:
        max_root_bytes = max_bytes - len(f"/{PREFIX}") - _RANDOM_LEN
        short = [root for root in roots if len(os.fsencode(root)) <= max_root_bytes]
        if not short:
            raise ValueError(
                f"no temporary folder has a path of at most {max_bytes} bytes: unset TMPDIR"
            )
        root = short[0]
        remove_abandoned(root)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        # Locked before it has its name: a lock that can be taken always means an owner that died.
        unnamed = self.path / f"{LOCK_NAME}.new"
        self._lock: BinaryIO | None = unnamed.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK_NAME)

    @property
    def lock_descriptor(self) -> int:
        """A child that inherits it owns the folder as well."""
        assert self._lock is not None
        return self._lock.fileno()

    def keep(self) -> None:
        """Leave the folder to the user: nothing removes it any more."""
        (self.path / LOCK_NAME).unlink(missing_ok=True)
        self._unlock()

    def remove(self) -> None:
        """Idempotent. Call it when nothing writes into the folder any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def remove_abandoned(root: Path) -> None:
    """Remove folders of `PrivateDir` below `root` that no process owns any more."""
    for lock in root.glob(f"{PREFIX}*/{LOCK_NAME}"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or gone meanwhile
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its owner lives
        else:
            if lock.exists():  # or it was kept just now: the name goes before the lock
                shutil.rmtree(lock.parent, ignore_errors=True)
        finally:
            os.close(descriptor)
