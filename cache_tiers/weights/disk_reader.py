"""Brings a model's files from the node's disk at the device's speed.

Chunks of all files are read side by side, each file's in order, so that who hashes it as it grows
is never far behind. Must not know what the files hold, nor what becomes of them.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cache_tiers.arena import has_huge_pages
from cache_tiers.block_image import ALIGN_BYTES
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.direct_file import DirectFile, aligned, aligned_memory
from cache_tiers.weights.errors import NoRoom, OriginFailed
from cache_tiers.weights.messages import CHUNK_BYTES
from cache_tiers.weights.worker_threads import run_in_threads


async def read_from_disk(
    folder: Path,
    targets: Sequence[ArrivingFile],
    *,
    num_threads: int = 8,
    open_file: Callable[[Path], DirectFile] = DirectFile.to_read,
) -> None:
    """Fill and mark what ``targets`` lack, from the files of these names in ``folder``.

    Raises `OriginFailed` for a file that is missing, of another size, or can't be read. When it
    returns, raises or is cancelled, nobody writes to ``targets`` any more. What was read isn't
    checked: see ``ArrivingFile.sha256``.
    """
    with ExitStack() as stack:
        files = [
            (target, stack.enter_context(_opened(folder, target, open_file))) for target in targets
        ]
        reading = Reading(files, is_straight=has_huge_pages())
        num_workers = min(num_threads, reading.num_waiting)
        await run_in_threads(reading.work, num_workers, stop=reading.stop)


def _opened(
    folder: Path, target: ArrivingFile, open_file: Callable[[Path], DirectFile]
) -> DirectFile:
    path = folder / target.file.name
    try:
        file = open_file(path)
    except (OSError, ValueError) as error:  # a name with a NUL
        raise OriginFailed(f"{path} can't be read: {error}") from error
    if file.num_bytes != target.file.num_bytes:
        num_bytes = file.num_bytes
        file.close()
        raise OriginFailed(
            f"{path} has {num_bytes} bytes instead of {target.file.num_bytes}: delete {folder}, so "
            "that the model is brought anew"
        )
    return file


@dataclass(frozen=True, slots=True)
class _Chunk:
    target: ArrivingFile
    file: DirectFile
    index: int


class Reading:
    """What threads share."""

    def __init__(
        self, files: Sequence[tuple[ArrivingFile, DirectFile]], *, is_straight: bool
    ) -> None:
        """``is_straight``: the device fills the memory itself. That's the quickest way where shared
        memory has large pages; small ones the kernel would clear and pin one by one, which takes
        longer than a copy out of large ones that clears none.
        """
        of_files = [
            [_Chunk(target, file, i) for i in range(target.num_chunks) if not target.has(i)]
            for target, file in files
        ]
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*of_files))
        self._waiting = deque(chunk for chunk in in_turn if chunk is not None)
        self._is_straight = is_straight

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def stop(self) -> None:
        """Workers return when they have read what they are at."""
        self._waiting.clear()

    def work(self) -> None:
        """In a thread of its own, until nothing is left or somebody's read has failed."""
        scratch = aligned_memory(CHUNK_BYTES)
        try:
            while True:
                try:
                    chunk = self._waiting.popleft()
                except IndexError:
                    return
                self._bring(chunk, scratch)
                chunk.target.mark(chunk.index)
        except BaseException:
            self.stop()
            raise

    def _bring(self, chunk: _Chunk, scratch: memoryview) -> None:
        num_bytes = chunk.target.chunk_bytes(chunk.index)
        offset = chunk.index * CHUNK_BYTES
        if self._is_straight and chunk.target.is_in_memory and num_bytes % ALIGN_BYTES == 0:
            with chunk.target.chunk(chunk.index) as memory:
                _read(chunk, memory, offset, num_bytes)
            return
        _read(chunk, scratch[: aligned(num_bytes)], offset, num_bytes)
        try:
            num_written = 0
            while num_written < num_bytes:
                content = scratch[num_written:num_bytes]
                num_written += os.pwrite(chunk.target.fd, content, offset + num_written)
        except OSError as error:
            raise NoRoom(f"no room for {chunk.target.file.name}: {error.strerror}") from error


def _read(chunk: _Chunk, memory: memoryview, offset: int, num_bytes: int) -> None:
    try:
        num_read = chunk.file.read(memory, offset)
    except OSError as error:
        raise OriginFailed(
            f"{chunk.target.file.name} can't be read from the disk at byte {offset}: {error}"
        ) from error
    if num_read < num_bytes:
        raise OriginFailed(
            f"{chunk.target.file.name} ended at byte {offset + num_read} while it was read: it has "
            f"{chunk.target.file.num_bytes} bytes"
        )
