"""What the disk tier asks of the operating system: the files of one folder, by name.

All calls block, may be made from any thread, and raise ``OSError``. The folder stays open by a
descriptor, so that a device that is unmounted or unplugged gives errors instead of files on the
device below. Must not know what the files hold.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cache_tiers.block_image import ALIGN_BYTES
from cache_tiers.disk.scratch import Scratch

_LOCK_NAME = "headwater.lock"
_PROBE_NAME = "headwater-probe.new"
_CHUNK_BYTES = 64 * 1024


def is_aligned(memory: memoryview) -> bool:
    """Whether direct I/O can use it."""
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address % ALIGN_BYTES == 0


class Files:
    """Direct I/O where the file system has it: KV is read once, and would only push out of the page
    cache what is read often. Else buffered, and the pages given up at once.
    """

    def __init__(self, folder: Path, scratch: Scratch | None = None) -> None:
        """Makes the folder if need be. Raises ``BlockingIOError`` when it is another's. With a
        ``scratch`` reads go through it.
        """
        self._scratch = scratch
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._lock = self._open(_LOCK_NAME, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.is_direct = self._takes_direct_io()
            except BaseException:
                os.close(self._lock)
                raise
        except BaseException:
            os.close(self._folder)
            raise

    def names(self) -> list[str]:
        """All in the folder, others' too."""
        return os.listdir(self._folder)

    def num_bytes(self, name: str) -> int | None:
        """The length of a file; ``None`` where there is none. Raises ``OSError`` if something else
        has its name.
        """
        try:
            found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a file of the tier; move it away", name)
        return found.st_size

    def preallocate(self, name: str, num_bytes: int) -> None:
        """Make a new file for which the device has room in full, or none at all."""
        file = self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(file, 0, num_bytes)
        except BaseException:
            self.remove(name)
            raise
        finally:
            os.close(file)

    def read(self, name: str, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill aligned buffers, one after the other; how many bytes there were."""
        file = self._open(name, os.O_RDONLY | self._direct_flag)
        try:
            read = os.preadv if self._scratch is None else self._scratch.read
            num_bytes = read(file, buffers, offset)
            self._give_up_pages(file, offset, num_bytes)
            return num_bytes
        finally:
            os.close(file)

    def write(self, name: str, buffers: Sequence[memoryview], offset: int) -> int:
        """Write aligned buffers into a file that is there; how many bytes were taken."""
        file = self._open(name, os.O_WRONLY | self._direct_flag)
        try:
            num_bytes = os.pwritev(file, buffers, offset)
            if not self.is_direct:
                os.fdatasync(file)  # dirty pages can't be given up
            self._give_up_pages(file, offset, num_bytes)
            return num_bytes
        finally:
            os.close(file)

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a small file, in multiples of 64 KiB but for the last."""
        with os.fdopen(self._open(name, os.O_RDONLY), "rb", buffering=0) as file:
            pending = b""
            while read := file.read(_CHUNK_BYTES):
                pending += read
                whole = len(pending) // _CHUNK_BYTES * _CHUNK_BYTES
                if whole:
                    yield pending[:whole]
                    pending = pending[whole:]
            if pending:
                yield pending

    def put(self, name: str, content: bytes, offset: int) -> None:
        """Write into a small file, which is made if need be, all or with an error."""
        file = self._open(name, os.O_WRONLY | os.O_CREAT)
        try:
            view = memoryview(content)
            while view:
                written = os.pwrite(file, view, offset)
                view, offset = view[written:], offset + written
        finally:
            os.close(file)

    def sync(self, name: str) -> None:
        """Return when what was ``put`` survives a loss of power."""
        file = self._open(name, os.O_RDONLY)
        try:
            os.fdatasync(file)
        finally:
            os.close(file)

    def rename(self, name: str, new_name: str) -> None:
        """Replaces what had the new name, at once."""
        os.rename(name, new_name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, name: str) -> None:
        """Also when it is gone already."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)

    def close(self) -> None:
        """The folder is free for another."""
        os.close(self._lock)
        os.close(self._folder)

    @property
    def _direct_flag(self) -> int:
        return os.O_DIRECT if self.is_direct else 0

    def _open(self, name: str, flags: int) -> int:
        # A link would lead elsewhere, and a pipe be waited for.
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=self._folder)

    def _takes_direct_io(self) -> bool:
        # Some file systems refuse the flag, others only the first transfer; full ones the probe.
        self.remove(_PROBE_NAME)
        try:
            self.put(_PROBE_NAME, bytes(ALIGN_BYTES), 0)
            file = self._open(_PROBE_NAME, os.O_RDONLY | os.O_DIRECT)
            try:
                with mmap.mmap(-1, ALIGN_BYTES) as page:
                    return os.preadv(file, [page], 0) == ALIGN_BYTES
            finally:
                os.close(file)
        except OSError:
            return False
        finally:
            self.remove(_PROBE_NAME)

    def _give_up_pages(self, file: int, offset: int, num_bytes: int) -> None:
        if not self.is_direct:
            os.posix_fadvise(file, offset, num_bytes, os.POSIX_FADV_DONTNEED)
