"""One file of a model while its bytes arrive, and afterwards: in memory, or on the disk.

It has one writer at a time and any number of readers, which may follow it chunk by chunk before it
is whole: other nodes do. In memory it is a memfd without a name, which is sealed once it is whole
and right, so that nobody can change it any more and a mapping of it can't fail. Must not know where
the bytes come from.
"""

import errno
import fcntl
import hashlib
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import xxhash

from cache_tiers.weights.errors import NoRoom, OriginFailed, WeightsError
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile

_F_SEAL_FUTURE_WRITE = 0x0010
"""Of Linux 5.1, and not in Python's ``fcntl`` yet. ``F_SEAL_WRITE`` is refused as long as pages are
on their way to another node: those in a socket's queue count as in use."""
_SEALS = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})
"""What ``OSError.errno`` says where there is no room."""


class ArrivingFile:
    """``mark`` each chunk when it is written, in any order; then ``seal``. Methods may be called
    from any thread. Owner: whoever made it closes it, when no one reads it any more.
    """

    def __init__(self, file: WeightFile, fd: int, *, is_in_memory: bool) -> None:
        """Takes over ``fd``, a file of ``file.num_bytes``. See ``in_memory`` and ``on_disk``."""
        self.file = file
        self.is_in_memory = is_in_memory
        self.fd = fd
        """For writing until it is sealed, and for who knows that it isn't closed meanwhile: see
        ``opened``. /proc/<pid>/fd/<fd> opens it."""
        self.num_chunks = -(-file.num_bytes // CHUNK_BYTES)
        self._map = mmap.mmap(fd, file.num_bytes) if file.num_bytes else None
        if self._map is not None and is_in_memory:
            # Where the kernel has large pages for shared memory: quicker to fill and to read.
            with suppress(OSError):  # a kernel without any
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._digests: list[bytes | None] = [None] * self.num_chunks
        self._has = bytearray(self.num_chunks)
        self._num_arrived_bytes = 0
        self._failure: WeightsError | None = None
        self._changed = threading.Condition()

    @classmethod
    def in_memory(cls, file: WeightFile) -> Self:
        """Raises `NoRoom`."""
        return cls._made(file, os.memfd_create("headwater-weights", _MEMFD_FLAGS), in_memory=True)

    @classmethod
    def on_disk(cls, file: WeightFile, path: Path) -> Self:
        """At ``path``, whose content is kept if it is there. Raises `NoRoom`, or `OSError` for a
        disk that can't be written."""
        return cls._made(file, os.open(path, os.O_RDWR | os.O_CREAT, 0o644), in_memory=False)

    @classmethod
    def _made(cls, file: WeightFile, fd: int, *, in_memory: bool) -> Self:
        try:
            os.ftruncate(fd, file.num_bytes)
            if file.num_bytes and not in_memory:
                os.posix_fallocate(fd, 0, file.num_bytes)  # a full disk shows here, not by SIGBUS
            return cls(file, fd, is_in_memory=in_memory)
        except OSError as error:
            os.close(fd)
            if error.errno not in FULL_ERRORS:
                raise
            where = "memory" if in_memory else "disk"
            raise NoRoom(
                f"no room for {file.name} ({file.num_bytes / 1e9:.2f} GB) in this node's {where}: "
                f"{error.strerror}"
            ) from error

    def chunk_bytes(self, index: int) -> int:
        """Of one chunk; the last one is shorter."""
        return min(CHUNK_BYTES, self.file.num_bytes - index * CHUNK_BYTES)

    def chunk(self, index: int) -> memoryview:
        """To be written to. Release it before ``seal``."""
        assert self._map is not None, "it is empty, or sealed"
        begin = index * CHUNK_BYTES
        return memoryview(self._map)[begin : begin + self.chunk_bytes(index)]

    def mark(self, index: int, digest: bytes | None = None) -> None:
        """All of this chunk is written; ``digest``: its xxh3_128, where that is known."""
        with self._changed:
            self._add(index)
            self._digests[index] = digest
            self._changed.notify_all()

    def mark_until(self, position: int) -> None:
        """All bytes before ``position`` are written."""
        is_all = position >= self.file.num_bytes
        num_whole = self.num_chunks if is_all else position // CHUNK_BYTES
        with self._changed:
            first = self._has.find(0, 0, num_whole)
            if first >= 0:
                for index in range(first, num_whole):
                    self._add(index)
                self._changed.notify_all()

    def fail(self, error: WeightsError) -> None:
        """It will never be whole: those who wait for it raise ``error``."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def has(self, index: int) -> bool:
        return bool(self._has[index])

    @property
    def num_leading_chunks(self) -> int:
        """That are here, from the begin on."""
        first_missing = self._has.find(0)
        return self.num_chunks if first_missing < 0 else first_missing

    @property
    def num_arrived_bytes(self) -> int:
        return self._num_arrived_bytes

    @property
    def is_whole(self) -> bool:
        return self._num_arrived_bytes == self.file.num_bytes

    def wait_for(self, index: int, timeout_s: float) -> bool:
        """Whether the chunk is here after at most ``timeout_s``. Raises what ``fail`` was given."""
        with self._changed:
            self._changed.wait_for(lambda: self._has[index] or self._failure is not None, timeout_s)
            if self._failure is not None and not self._has[index]:
                raise self._failure
            return bool(self._has[index])

    def digest(self, index: int) -> bytes:
        """The chunk's xxh3_128; computed where nobody has told it. It must be here. Raises as
        ``read_chunk`` does."""
        assert self._has[index]
        digest = self._digests[index]
        if digest is None:
            content = memoryview(bytearray(self.chunk_bytes(index)))
            self.read_chunk(index, content)
            digest = self._digests[index] = xxhash.xxh3_128_digest(content)
        return digest

    def read_chunk(self, index: int, memory: memoryview) -> None:
        """Into ``memory``, of the chunk's size; also once it is sealed. It must be here. Raises
        `OriginFailed`."""
        assert self._has[index]
        with self.opened() as fd:
            if os.preadv(fd, [memory], index * CHUNK_BYTES) != self.chunk_bytes(index):
                raise OriginFailed(f"{self.file.name} ended while it was read")

    @contextmanager
    def opened(self) -> Iterator[int]:
        """To be read, also while the owner closes it, after which the number of ``fd`` may be
        another file's. Raises `OriginFailed`."""
        try:
            with self._changed:
                if self.fd < 0:
                    raise OriginFailed(f"{self.file.name} was let go")
                fd = os.dup(self.fd)
        except OSError as error:
            raise OriginFailed(f"{self.file.name} can't be opened: {error.strerror}") from error
        try:
            yield fd
        finally:
            os.close(fd)

    def sha256(self, silence_s: float) -> str:
        """Hex digest of all of it, hashed in order as chunks arrive; call it in a thread of its
        own. Raises `OriginFailed` when nothing new came for ``silence_s``, and what ``fail`` was
        given.
        """
        digest = hashlib.sha256()
        for index in range(self.num_chunks):
            seen = self._num_arrived_bytes
            while not self.wait_for(index, silence_s):
                if self._num_arrived_bytes == seen:
                    raise OriginFailed(f"{self.file.name}: nothing came for {silence_s:g} s")
                seen = self._num_arrived_bytes
            with self.chunk(index) as content:
                digest.update(content)
            self._unmap(index)
        return digest.hexdigest()

    def seal(self) -> None:
        """No byte changes from now on. It is whole, no ``chunk`` is in use, and no other process
        has mapped it to write; some may be reading it, or sending it."""
        assert self.is_whole
        if self._map is not None:
            self._map.close()
            self._map = None
        if self.is_in_memory:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    def close(self) -> None:
        """Idempotent. Who has opened or mapped it keeps it, and so does a ``chunk`` in use."""
        with self._changed:
            if self.fd >= 0:
                self._map = None
                os.close(self.fd)
                self.fd = -1

    def _unmap(self, index: int) -> None:
        """Its bytes stay. Done here it costs what it would in ``seal``, where all wait for it."""
        memory = self._map
        if memory is not None:
            memory.madvise(mmap.MADV_DONTNEED, index * CHUNK_BYTES, self.chunk_bytes(index))

    def _add(self, index: int) -> None:
        if not self._has[index]:
            self._has[index] = 1
            self._num_arrived_bytes += self.chunk_bytes(index)


_MEMFD_FLAGS = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
