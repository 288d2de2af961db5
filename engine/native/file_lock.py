"""One writer of a shared file at a time, without waiting for ever."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.05


@contextmanager
def held_lock(path: Path, *, limit_s: float) -> Iterator[None]:
    """Hold the lock ``path``, or go on without it after ``limit_s``: what it saves is double work,
    since files are put in place whole.

    Raises ``OSError`` if the folder can't be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline_s = time.monotonic() + limit_s
        while not _try_lock(descriptor) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # some network file systems have no locks
    return True
