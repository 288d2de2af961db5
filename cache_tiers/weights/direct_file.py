"""A large file that is read or written once, from its beginning to its end.

Direct I/O where the file system has it: gigabytes of weights would push out of the page cache what
is read often. Else plain, and the pages are given up at once. All calls block and raise
``OSError``. Must not know what the file holds.
"""

import errno
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from cache_tiers.block_image import ALIGN_BYTES

_HUGE_PAGE_BYTES = 2 * 1024**2


def aligned(num_bytes: int) -> int:
    """The next multiple that direct I/O takes."""
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


def aligned_memory(num_bytes: int) -> memoryview:
    """In large pages, which a device fills twice as fast as small ones."""
    whole_bytes = -(-num_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    mapping = mmap.mmap(-1, whole_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without any
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)[:num_bytes]


class DirectFile:
    """Memory and offsets are aligned; only a file's last bytes may be no whole page. Any number of
    threads at a time; whoever made it closes it, when they are done.
    """

    def __init__(self, path: Path, flags: int) -> None:
        """See ``to_read`` and ``to_write``."""
        self._direct: int | None = None
        self.fd = os.open(path, flags | os.O_NONBLOCK, 0o644)  # a pipe would be waited for
        try:
            if not stat.S_ISREG(os.fstat(self.fd).st_mode):
                raise OSError(errno.EINVAL, "not a file", str(path))
            self._direct = self._open_direct(flags & os.O_ACCMODE)
        except BaseException:
            os.close(self.fd)
            raise

    @classmethod
    def to_read(cls, path: Path) -> Self:
        """A regular file."""
        return cls(path, os.O_RDONLY)

    @classmethod
    def to_write(cls, path: Path) -> Self:
        """To be read, too; made if need be. A link isn't followed."""
        return cls(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    @property
    def is_direct(self) -> bool:
        return self._direct is not None

    def read(self, memory: memoryview, offset: int) -> int:
        """Fill ``memory``; how many bytes there were."""
        num_read = 0
        while num_read < len(memory):
            # An error remembers who called, so no view of a file in memory may stay there.
            with memory[num_read:] as rest:
                last = self._read_some(rest, offset + num_read)
            num_read += last
            if last == 0 or (self.is_direct and num_read % ALIGN_BYTES):  # the file's end
                break
        return num_read

    def write(self, memory: memoryview, offset: int) -> None:
        """All of ``memory``."""
        num_written = 0
        while num_written < len(memory):
            last = self._write_some(memory[num_written:], offset + num_written)
            if last == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            num_written += last

    def close(self) -> None:
        """Once."""
        os.close(self.fd)
        if self._direct is not None:
            os.close(self._direct)

    def _open_direct(self, access: int) -> int | None:
        # Some file systems refuse the flag, others only the first transfer.
        try:
            fd = os.open(f"/proc/self/fd/{self.fd}", access | os.O_DIRECT)
        except OSError:
            return None
        try:
            with mmap.mmap(-1, ALIGN_BYTES) as page:
                os.preadv(fd, [page], 0)
        except OSError:
            os.close(fd)
            return None
        return fd

    def _read_some(self, memory: memoryview, offset: int) -> int:
        if self._direct is not None:
            return os.preadv(self._direct, [memory], offset)
        # All of it is asked for at once, instead of a window of readahead at a time.
        os.posix_fadvise(self.fd, offset, len(memory), os.POSIX_FADV_WILLNEED)
        num_read = os.preadv(self.fd, [memory], offset)
        os.posix_fadvise(self.fd, offset, num_read, os.POSIX_FADV_DONTNEED)
        return num_read

    def _write_some(self, memory: memoryview, offset: int) -> int:
        if self._direct is not None:
            return os.pwritev(self._direct, [memory], offset)
        num_written = os.pwritev(self.fd, [memory], offset)
        os.fdatasync(self.fd)  # dirty pages can't be given up, and a burst of them stops others
        os.posix_fadvise(self.fd, offset, num_written, os.POSIX_FADV_DONTNEED)
        return num_written
