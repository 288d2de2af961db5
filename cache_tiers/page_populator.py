"""Gives a shared mapping its pages before they are needed, without holding anybody up.

The first write to a page of fresh shared memory makes the kernel find and clear one, which is
slower than the copy that it stands before; and every process that maps the memory takes a fault
for each page. ``MAP_POPULATE`` would do it all before ``mmap`` returns: tens of seconds for a large
arena. Must not know what the memory is for.
"""

import ctypes
import logging
import mmap
import os
import threading
from errno import EINVAL

logger = logging.getLogger(__name__)

_MADV_POPULATE_WRITE = 23
"""Linux 5.14; Python has no name for it."""
_PIECE_BYTES = 8 * 1024**2
"""A few milliseconds: ``stop`` waits no longer."""
_LOWEST_PRIORITY = 19


class PagePopulator:
    """A thread that goes once through ``mapping``, from its beginning; ``stop`` before closing it.

    Calls madvise by ctypes, since ``mmap.madvise`` keeps the interpreter's lock.
    """

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="page-populator", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent; the mapping may be closed afterwards."""
        self._is_stopped = True
        self._thread.join()

    def wait(self) -> None:
        """Return when every page is there: for measurements."""
        self._thread.join()

    def _run(self) -> None:
        # Of this thread alone: with few cores it would take one from what runs meanwhile.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        num_bytes = len(self._mapping)
        first = ctypes.c_char.from_buffer(self._mapping)
        address = ctypes.addressof(first)
        del first  # it would keep the mapping from being closed
        for begin in range(0, num_bytes, _PIECE_BYTES):
            if self._is_stopped:
                return
            piece_bytes = min(_PIECE_BYTES, num_bytes - begin)
            if madvise(address + begin, piece_bytes, _MADV_POPULATE_WRITE) != 0:
                error = ctypes.get_errno()
                if error != EINVAL:  # an older kernel: pages come as they are used
                    logger.warning("cannot populate the arena: %s", os.strerror(error))
                return
