"""Copies a file of weights from memory to the node's disk, in the background.

The disk has other users: the copy keeps to a rate and runs at the lowest priority. Must not know
models, nor when a copy is worth it.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from cache_tiers.weights.arriving_file import FULL_ERRORS, ArrivingFile
from cache_tiers.weights.direct_file import DirectFile, aligned, aligned_memory
from cache_tiers.weights.errors import NoRoom
from cache_tiers.weights.messages import CHUNK_BYTES
from cache_tiers.weights.worker_threads import run_in_threads

_LOWEST_PRIORITY = 19


async def write_to_disk(
    source: ArrivingFile,
    path: Path,
    *,
    max_bytes_per_s: float | None = None,
    open_file: Callable[[Path], DirectFile] = DirectFile.to_write,
) -> None:
    """All of ``source``, which is whole, to ``path``: a name that nobody reads yet, which the
    caller renames afterwards. When it returns, the content survives a loss of power.

    What an earlier call has left at ``path`` is compared, and only the rest is written. Raises
    `NoRoom` when the disk is full (then there is no file) or can't be written. When it is cancelled
    the file stays, to be continued, and nobody writes to it.
    """
    assert source.is_whole
    copy = _Copy(source, path, max_bytes_per_s, open_file)
    await run_in_threads(copy.run, 1, stop=copy.stop)


class _Copy:
    def __init__(
        self,
        source: ArrivingFile,
        path: Path,
        max_bytes_per_s: float | None,
        open_file: Callable[[Path], DirectFile],
    ) -> None:
        self._source = source
        self._path = path
        self._max_bytes_per_s = max_bytes_per_s
        self._open_file = open_file
        self._next_s = time.monotonic()
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """``run`` returns when it has written what it is at."""
        self._is_stopped.set()

    def run(self) -> None:
        """In a thread of its own."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        num_bytes = self._source.file.num_bytes
        try:
            with self._open_file(self._path) as file:
                num_before_bytes = file.num_bytes
                if num_bytes:
                    os.posix_fallocate(file.fd, 0, num_bytes)
                self._fill(file, num_before_bytes)
                os.ftruncate(file.fd, num_bytes)  # the last page was written whole
                if not self._is_stopped.is_set():
                    os.fsync(file.fd)
        except OSError as error:
            if error.errno in FULL_ERRORS:
                self._path.unlink(missing_ok=True)
            raise NoRoom(
                f"{self._path} ({num_bytes / 1e9:.2f} GB) can't be written: {error.strerror}: make "
                "room on the disk, or lower disk_bytes of the node cache's weights"
            ) from error

    def _fill(self, file: DirectFile, num_before_bytes: int) -> None:
        content, there = aligned_memory(CHUNK_BYTES), aligned_memory(CHUNK_BYTES)
        for index in range(self._source.num_chunks):
            if self._is_stopped.is_set():
                return
            offset, num_bytes = index * CHUNK_BYTES, self._source.chunk_bytes(index)
            if offset < num_before_bytes:
                num_there = file.read(there[: aligned(num_bytes)], offset)
                same = xxhash.xxh3_128_digest(there[:num_bytes]) == self._source.digest(index)
                if num_there >= num_bytes and same:
                    continue
            if self._paced(num_bytes):
                self._source.read_chunk(index, content[:num_bytes])
                file.write(content[: aligned(num_bytes)], offset)

    def _paced(self, num_bytes: int) -> bool:
        """Wait until so much more may be written; False when it shall stop."""
        if self._max_bytes_per_s is None:
            return True
        # Paid for before it is written, and what a slow disk has lost isn't made up for: no bursts.
        now_s, time_s = time.monotonic(), num_bytes / self._max_bytes_per_s
        self._next_s = max(self._next_s + time_s, now_s)
        return not self._is_stopped.wait(self._next_s - now_s)
