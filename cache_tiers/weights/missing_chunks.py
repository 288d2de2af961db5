"""Which chunks a model lacks and who is bringing them. Must not know how they are brought."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cache_tiers.weights.arriving_file import ArrivingFile


class ChunkRef(NamedTuple):
    """One chunk."""

    file: ArrivingFile
    chunk_index: int

    @property
    def num_bytes(self) -> int:
        return self.file.chunk_bytes(self.chunk_index)


class MissingChunks:
    """Threads ``claim`` chunks in the order of files and positions, and say what came of each.
    Owner: one promotion.
    """

    def __init__(self, files: Sequence[ArrivingFile]) -> None:
        self._lock = threading.Lock()
        self._unclaimed = deque(
            ChunkRef(file, index)
            for file in files
            for index in range(file.num_chunks)
            if not file.has(index)
        )
        self._num_claimed = 0
        self._spoilers: dict[ChunkRef, set[object]] = {}
        """Who sent something else instead of it."""
        self._num_spoiled: Counter[object] = Counter()
        self.num_total_bytes = sum(file.file.num_bytes for file in files)
        self.num_here_bytes = sum(file.num_arrived_bytes for file in files)
        self.num_brought = 0
        self.num_brought_bytes = 0
        self.last_arrival_s = time.monotonic()

    @property
    def is_done(self) -> bool:
        with self._lock:
            return not self._unclaimed and not self._num_claimed

    @property
    def num_unclaimed(self) -> int:
        return len(self._unclaimed)

    @property
    def num_spoiled(self) -> int:
        """Chunks that came wrong."""
        return self._num_spoiled.total()

    @property
    def num_left_bytes(self) -> int:
        return self.num_total_bytes - self.num_here_bytes

    def has_for(self, parent: object) -> bool:
        """Whether there is one to ask ``parent`` for."""
        with self._lock:
            return any(parent not in self._spoilers.get(ref, ()) for ref in self._unclaimed)

    def claim(
        self, parent: object, num_leading_chunks: Mapping[str, int] | None = None
    ) -> ChunkRef | None:
        """The next one that nobody brings, and that ``parent`` hasn't spoiled; of these the first
        that it is known to have, by how many leading chunks of which file, if there is one."""
        with self._lock:
            next_at = None
            for at, ref in enumerate(self._unclaimed):
                if parent in self._spoilers.get(ref, ()):
                    continue
                if next_at is None:
                    next_at = at
                if not num_leading_chunks:
                    break
                if ref.chunk_index < num_leading_chunks.get(ref.file.file.name, 0):
                    next_at = at
                    break
            if next_at is None:
                return None
            claimed = self._unclaimed[next_at]
            del self._unclaimed[next_at]
            self._num_claimed += 1
            return claimed

    def give_back(self, refs: Iterable[ChunkRef]) -> None:
        """What was claimed and didn't come."""
        with self._lock:
            for ref in sorted(refs, key=lambda ref: ref.chunk_index, reverse=True):
                self._unclaimed.appendleft(ref)
                self._num_claimed -= 1

    def spoiled(self, ref: ChunkRef, parent: object) -> int:
        """What was claimed came wrong: others are asked for it first. Returns how many have come
        wrong from ``parent``, this one included."""
        with self._lock:
            self._spoilers.setdefault(ref, set()).add(parent)
            self._num_spoiled[parent] += 1
            num_spoiled = self._num_spoiled[parent]
        self.give_back([ref])
        return num_spoiled

    def forgive(self) -> None:
        """Those who spoiled a chunk may be asked for it again: nobody else has brought it."""
        with self._lock:
            self._spoilers.clear()

    def arrived(self, ref: ChunkRef, digest: bytes) -> None:
        """What was claimed is written."""
        ref.file.mark(ref.chunk_index, digest)
        with self._lock:
            self._num_claimed -= 1
            self.num_here_bytes += ref.num_bytes
            self.num_brought += 1
            self.num_brought_bytes += ref.num_bytes
            self.last_arrival_s = time.monotonic()
