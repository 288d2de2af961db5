"""Brings files in parts, in parallel, hashed on the way.

Several files are on their way at once; each has one thread that hashes its parts in order while the
readers' threads fetch the next ones, so that neither the network nor a processor waits for the
other. No part is held in memory: it is written piece by piece, and hashed out of the page cache.
Must not know where the files lie.
"""

import os
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

from engine.checkpoints.errors import CorruptCheckpoint, SourceUnavailable, TransferInterrupted
from engine.checkpoints.partial_file import PartialFile
from engine.checkpoints.remote_file import RemoteFile

PART_BYTES = 8 << 20
_NUM_CORES = len(os.sched_getaffinity(0))
NUM_READERS = min(max(12, _NUM_CORES // 2), 48)
NUM_FILES_AT_ONCE = min(max(3, _NUM_CORES // 8), 12)
"""Each is hashed by one thread, at two gigabytes a second."""
_MAX_PARTS_AHEAD = 8
"""Of one file: what a killed download loses at most, since parts count in order only."""
_NUM_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.25
_FLUSH_BYTES = 64 << 20
"""Of a file, at a time: the disk works while the network does, not after it."""
_TICK_S = 0.5
"""So often the part that is next in order is hashed as far as it has come."""


class Transfer:
    """One call of ``bring_files``: its readers, and its brake."""

    def __init__(
        self, readers: ThreadPoolExecutor, on_bytes: Callable[[int], None], part_bytes: int
    ) -> None:
        self._readers = readers
        self._on_bytes = on_bytes
        self._part_bytes = part_bytes
        self._is_stopped = threading.Event()

    def bring(self, file: RemoteFile, partial: PartialFile) -> str:
        """All of ``file`` that ``partial`` lacks; its sha256. Raises what the readers raise, and
        `CorruptCheckpoint` for a wrong hash: nothing of ``partial`` may be used then."""
        self._on_bytes(partial.position)
        self._bring_parts(file, partial)
        digest = partial.finish()
        if file.sha256 is not None and digest != file.sha256:
            raise CorruptCheckpoint(
                f"{file.name} arrived with sha256 {digest} instead of {file.sha256}. Pull again; "
                "if it happens twice, the source is damaged."
            )
        return digest

    def stop(self) -> None:
        """End all reads soon."""
        self._is_stopped.set()

    def _bring_parts(self, file: RemoteFile, partial: PartialFile) -> None:
        starts = iter(range(partial.position, file.num_bytes, self._part_bytes))
        under_way: deque[tuple[_Part, Future[None]]] = deque()
        flush: Future[None] = self._readers.submit(partial.flush)
        flush_at = partial.position + _FLUSH_BYTES
        try:
            while True:
                while (
                    len(under_way) < _MAX_PARTS_AHEAD and (begin := next(starts, None)) is not None
                ):
                    part = _Part(begin, min(begin + self._part_bytes, file.num_bytes))
                    task = self._readers.submit(self._read_part, file, partial, part)
                    under_way.append((part, task))
                if not under_way:
                    return
                part, task = under_way[0]
                wait([task], timeout=_TICK_S)
                if task.done():
                    task.result()
                    under_way.popleft()
                partial.advance(part.position)
                if partial.position >= flush_at and flush.done():
                    flush = self._readers.submit(partial.flush)
                    flush_at = partial.position + _FLUSH_BYTES
        except BaseException:
            self.stop()
            raise
        finally:
            wait([flush, *(task for _, task in under_way)])  # they use a file that is closed next
            if under_way:
                with suppress(OSError):  # the next attempt then reads it again
                    partial.advance(under_way[0][0].position)

    def _read_part(self, file: RemoteFile, partial: PartialFile, part: "_Part") -> None:
        """Write one part; an attempt goes on where the one before broke off."""
        num_failures = 0
        while part.position < part.end:
            self._check()
            try:
                for piece in file.read(part.position, part.end):
                    self._check()
                    if len(piece) > part.end - part.position:
                        raise SourceUnavailable(
                            f"{file.name}: the source sent more than it was asked"
                        )
                    partial.write(piece, part.position)
                    part.position += len(piece)
                    self._on_bytes(len(piece))
                    if piece:
                        num_failures = 0
                if part.position < part.end:
                    raise TransferInterrupted("the source sent less than it was asked for")
            except TransferInterrupted as error:
                num_failures += 1
                if num_failures == _NUM_ATTEMPTS:
                    raise SourceUnavailable(
                        f"{file.name} breaks off again and again ({error}). What arrived is kept: "
                        "pull again to go on."
                    ) from error
                self._pause(_FIRST_PAUSE_S * 2**num_failures)

    def _check(self) -> None:
        if self._is_stopped.is_set():
            raise _StoppedError

    def _pause(self, duration_s: float) -> None:
        # Not all readers at the same moment: a store that is too busy would be so again.
        self._is_stopped.wait(random.uniform(duration_s / 2, duration_s))  # noqa: S311
        self._check()


def bring_files(
    files: Sequence[RemoteFile],
    bring_one: Callable[[RemoteFile, Transfer], None],
    *,
    on_bytes: Callable[[int], None],
    part_bytes: int = PART_BYTES,
) -> None:
    """Call ``bring_one`` for each, some at a time; it opens a place and calls ``Transfer.bring``.

    ``on_bytes`` is told of bytes that are written, in any thread. After a failure all stop, and the
    first one that isn't only a consequence is raised.
    """
    # Small files last: a long one then never starts when all others are done.
    largest_first = sorted(files, key=lambda file: -file.num_bytes)
    with (
        ThreadPoolExecutor(NUM_READERS, "reader") as readers,
        ThreadPoolExecutor(NUM_FILES_AT_ONCE, "hasher") as hashers,
    ):
        transfer = Transfer(readers, on_bytes, part_bytes)
        _join([hashers.submit(bring_one, file, transfer) for file in largest_first], transfer)


@dataclass(slots=True)
class _Part:
    """What one task reads."""

    position: int
    """All of the part before it is written."""
    end: int


class _StoppedError(Exception):
    """Another part failed."""


def _join(tasks: Sequence[Future[None]], transfer: Transfer) -> None:
    try:
        wait(tasks, return_when=FIRST_EXCEPTION)
    finally:  # also at Ctrl-C, which arrives here
        transfer.stop()
        for task in tasks:
            task.cancel()
    wait(tasks)
    ended = [task.exception() for task in tasks if not task.cancelled()]
    failures = [error for error in ended if error is not None]
    if failures:
        raise next((e for e in failures if not isinstance(e, _StoppedError)), failures[0])
