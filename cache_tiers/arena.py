"""The memory that a node's cache and all engine ranks on the node share: a memfd, mapped by each.

A memfd has no name that could be left behind: the kernel frees it with the last process that maps
it, also after ``kill -9``. Its size is sealed, so that no process can make another one's access
fail. Must not know what lies in it, nor who uses it.
"""

import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

import psutil

from cache_tiers.block_image import ALIGN_BYTES
from cache_tiers.page_populator import PagePopulator
from cache_tiers.slabs import SlabAllocator

_MIB = 1024**2
_MIN_SLAB_BYTES = 4 * _MIB
_MAX_SLAB_BYTES = 32 * _MIB
_MIN_SLABS = 8
"""Of a small arena: more of them split it better between models, fewer waste less at their ends."""
_HUGE_PAGES_SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class ArenaError(Exception):
    """The arena can't be had; the message says why and what to do."""


class Arena:
    """The owner's side: makes the memory and says which offsets are used."""

    def __init__(self, total_bytes: int, *, available_bytes: int | None = None) -> None:
        """``available_bytes``: memory that this process may still take, where somebody knows of
        limits below the machine's. Raises ``ArenaError``.
        """
        if available_bytes is None:
            available_bytes = psutil.virtual_memory().available
        if total_bytes > available_bytes:
            raise ArenaError(
                f"host_bytes is {total_bytes} ({total_bytes // _MIB} MiB), but only "
                f"{available_bytes} bytes ({available_bytes // _MIB} MiB) are free: lower it"
            )
        slab_bytes = min(_MAX_SLAB_BYTES, max(_MIN_SLAB_BYTES, total_bytes // _MIN_SLABS))
        slab_bytes -= slab_bytes % ALIGN_BYTES
        num_slabs = total_bytes // slab_bytes
        if num_slabs == 0:
            raise ArenaError(f"host_bytes must be at least {_MIN_SLAB_BYTES}, got {total_bytes}")
        self.num_bytes = num_slabs * slab_bytes
        """``total_bytes`` in whole slabs."""
        self.slabs = SlabAllocator(num_slabs, slab_bytes)
        self._fd = _sealed_memfd(self.num_bytes)
        self._map = ArenaMap(self._fd, self.num_bytes)

    @property
    def fd(self) -> int:
        """For engines, which map it on their own; the arena's to close."""
        return self._fd

    @property
    def memory(self) -> memoryview:
        """All of it, writable."""
        return self._map.memory

    @property
    def max_image_bytes(self) -> int:
        return self.slabs.slab_bytes

    def capacity(self, image_bytes: int) -> int:
        """Images of this size that fit if there are no others."""
        return self.slabs.capacity(image_bytes)

    def allocate(self, image_bytes: int) -> int | None:
        """Where an image may lie; None: there is no room as things are."""
        return self.slabs.allocate(image_bytes)

    def free(self, offset: int) -> None:
        """Give back what ``allocate`` returned; nobody writes or reads there any more."""
        self.slabs.free(offset)

    def slab_mates(self, offset: int) -> list[int]:
        """Other used offsets that must be freed, too, before images of another size fit there."""
        return self.slabs.slab_mates(offset)

    def close(self) -> None:
        """Idempotent. Engines keep what they have mapped, and so do views of ``memory``."""
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)
            self._fd = -1


class ArenaMap:
    """A process's view of an arena; ``fd`` may be closed afterwards."""

    def __init__(self, fd: int, num_bytes: int) -> None:
        """Raises ``ArenaError`` if ``fd`` is no memory of ``num_bytes`` that is sure to stay."""
        _check(fd, num_bytes)
        self._mapping = mmap.mmap(fd, num_bytes)
        with suppress(OSError):  # a kernel without large pages
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.memory = memoryview(self._mapping)
        self._populator = PagePopulator(self._mapping)

    @property
    def num_bytes(self) -> int:
        return len(self._mapping)

    def wait_populated(self) -> None:
        """Return when no first access to a page is slow any more: for measurements."""
        self._populator.wait()

    def close(self) -> None:
        """Idempotent. While somebody has a view of ``memory`` the mapping stays."""
        self._populator.stop()
        with suppress(BufferError):
            self.memory.release()
            self._mapping.close()


def has_huge_pages(setting: Path = _HUGE_PAGES_SETTING) -> bool:
    """Whether the kernel gives shared memory large pages where it is asked to."""
    try:
        return not {"[never]", "[deny]"} & set(setting.read_text().split())
    except OSError:  # a kernel without them
        return False


def _sealed_memfd(num_bytes: int) -> int:
    if not hasattr(os, "memfd_create"):
        raise ArenaError("this system has no memfd_create: KV cache tiers need Linux")
    fd = os.memfd_create("headwater-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, num_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise ArenaError(f"no shared memory of host_bytes={num_bytes}: {error}") from error
    return fd


def _check(fd: int, num_bytes: int) -> None:
    """A file that may shrink below a mapping kills whoever touches it (SIGBUS)."""
    try:
        size = os.fstat(fd).st_size
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ArenaError(f"the arena's descriptor is no sealed memory: {error}") from error
    if size != num_bytes or seals & _SIZE_SEALS != _SIZE_SEALS:
        raise ArenaError(
            f"the arena's descriptor holds {size} bytes with seals {seals:#x}, "
            f"expected {num_bytes} bytes of fixed size"
        )
