"""One writer of a shared file at a time, without waiting for ever."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.05


@contextmanager
def held_lock(path: Path, *, limit_s: float) -> Iterator[bool]:
    """Hold the lock ``path``, or go on without it after ``limit_s`` or where there are no locks;
    yields whether it is held. What it saves is double work, since files are put in place whole.

    Raises ``OSError`` if the folder can't be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _lock(descriptor, limit_s)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
        except OSError:
            return False  # some network file systems have no locks
        else:
            return True
        time.sleep(_POLL_S)
