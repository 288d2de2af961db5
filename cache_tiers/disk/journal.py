"""A folder's write-ahead log: what its segments hold, one record after the other.

The event loop adds records, which costs no I/O; threads write them out. Killed at any moment, at
most the last record is torn, and is written over. Nothing waits for the device: a loss of power
costs the records of some seconds, and every image proves itself anyway. Must not know slots.
"""

import threading
from collections.abc import Iterable, Iterator

from cache_tiers.disk.files import Files
from cache_tiers.disk.records import RECORD_BYTES, Record, decode, encode

NAME = "headwater-index-1.wal"
"""Another format gets another number."""
NEW_NAME = NAME + ".new"
_MAX_DAMAGED = 65_536
"""In a row: what comes behind is no journal, however long it is."""


class Journal:
    """``replay`` comes first, then the rest. ``add`` and ``begin_rewrite`` on one thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._num_written = 0
        """Records in the file."""
        self._pending = bytearray()
        """Added, not in the file yet."""
        self._since_rewrite: bytearray | None = None
        """Added since a rewrite began."""
        self._buffers = threading.Lock()
        """Never held over I/O: the event loop takes it."""
        self._writing = threading.Lock()

    @property
    def num_records(self) -> int:
        return self._num_written + len(self._pending) // RECORD_BYTES

    def replay(self) -> Iterator[Record | None]:
        """What was written, ``None`` for a damaged record; blocks, raises ``OSError``. After damage
        comes a ``rewrite``, or else old records may be read again behind new ones.
        """
        if self._files.num_bytes(NAME) is None:
            return
        rest, num_damaged = b"", 0
        for chunk in self._files.chunks(NAME):
            content = rest + chunk
            for record in decode(content):
                self._num_written += 1
                yield record
                num_damaged = num_damaged + 1 if record is None else 0
                if num_damaged == _MAX_DAMAGED:
                    return
            rest = content[len(content) // RECORD_BYTES * RECORD_BYTES :]

    def add(self, record: Record) -> None:
        """To be written by the next ``flush``."""
        encoded = encode(record)
        with self._buffers:
            self._pending += encoded
            if self._since_rewrite is not None:
                self._since_rewrite += encoded

    def flush(self) -> None:
        """Write what was added, so that it survives this process; blocks. Raises ``OSError``, and
        then a later call tries again.
        """
        with self._writing:
            with self._buffers:
                batch = bytes(self._pending)
            if batch:
                self._files.put(NAME, batch, self._num_written * RECORD_BYTES)
                self._num_written += len(batch) // RECORD_BYTES
                self._forget(len(batch))

    def sync(self) -> None:
        """Flush, and wait for the device."""
        self.flush()
        if self._files.num_bytes(NAME) is not None:
            self._files.sync(NAME)

    def begin_rewrite(self) -> None:
        """From now on records are kept for ``rewrite``."""
        with self._buffers:
            self._since_rewrite = bytearray()

    def rewrite(self, state: Iterable[Record]) -> None:
        """Put ``state`` in the place of all records before ``begin_rewrite``; blocks. ``state`` may
        hold some of what was added since: replaying it again changes nothing. Raises ``OSError``,
        and then the old records stay.
        """
        try:
            self._files.remove(NEW_NAME)
            num_records = self._put_all(state)
            with self._writing:
                with self._buffers:
                    assert self._since_rewrite is not None, "begin_rewrite was not called"
                    # What is pending is in the state or since; what comes next, ``flush`` writes.
                    since, num_pending_bytes = bytes(self._since_rewrite), len(self._pending)
                    self._since_rewrite = None
                self._files.put(NEW_NAME, since, num_records * RECORD_BYTES)
                self._files.sync(NEW_NAME)
                self._files.rename(NEW_NAME, NAME)
                self._num_written = num_records + len(since) // RECORD_BYTES
                self._forget(num_pending_bytes)
        finally:
            with self._buffers:
                self._since_rewrite = None

    def _put_all(self, state: Iterable[Record]) -> int:
        num_records, batch = 0, bytearray()
        for record in state:
            batch += encode(record)
            if len(batch) >= 1024 * RECORD_BYTES:
                self._files.put(NEW_NAME, bytes(batch), num_records * RECORD_BYTES)
                num_records += len(batch) // RECORD_BYTES
                batch.clear()
        self._files.put(NEW_NAME, bytes(batch), num_records * RECORD_BYTES)
        return num_records + len(batch) // RECORD_BYTES

    def _forget(self, num_pending_bytes: int) -> None:
        with self._buffers:
            del self._pending[:num_pending_bytes]
