"""A node's memory for weights: how much there is, and which files have it.

Must not know models, nor who leaves when it is short.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom
from cache_tiers.weights.messages import WeightFile


class HostMemory:
    """Methods may be called from any thread."""

    def __init__(self, host_bytes: int, *, available_bytes: Callable[[], int]) -> None:
        """``available_bytes``: what this process may still take at this moment."""
        self.host_bytes = host_bytes
        self._available_bytes = available_bytes
        self._held: dict[int, ArrivingFile] = {}
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Of all files that weren't released, whether they are linked anywhere, leased, or still
        on their way."""
        with self._lock:
            return self._sum_held()

    @property
    def free_bytes(self) -> int:
        """What can be made now, by the bound and by what the node has; less than 0 if others'
        bytes that are still to come find no room."""
        with self._lock:
            used_bytes = self._sum_held()
            return min(self.host_bytes - used_bytes, self._unclaimed_bytes(used_bytes))

    def make_files(self, files: Sequence[WeightFile]) -> list[ArrivingFile]:
        """One in memory for each of ``files``, all or none. Raises `NoRoom`."""
        with self._lock:
            self._check_room(files)
            with ExitStack() as undo:
                made = [_made(file, undo) for file in files]
                undo.pop_all()
            self._held.update((id(each), each) for each in made)
            return made

    def release(self, files: Sequence[ArrivingFile]) -> None:
        """Closes them; those that were released before are left alone. Nobody leases them: memory
        that a rank has mapped is free only when it ends."""
        with self._lock:
            for file in files:
                if self._held.pop(id(file), None) is not None:
                    file.close()

    def _sum_held(self) -> int:
        return sum(file.file.num_bytes for file in self._held.values())

    def _unclaimed_bytes(self, used_bytes: int) -> int:
        # Memory is taken as bytes come, so others' that are still to come are spoken for.
        coming_bytes = used_bytes - sum(file.num_arrived_bytes for file in self._held.values())
        return self._available_bytes() - coming_bytes

    def _check_room(self, files: Sequence[WeightFile]) -> None:
        num_bytes = sum(file.num_bytes for file in files)
        used_bytes = self._sum_held()
        if used_bytes + num_bytes > self.host_bytes:
            raise NoRoom(
                f"{num_bytes / 1e9:.2f} GB of weights don't fit into host_bytes, "
                f"{self.host_bytes / 1e9:.2f} GB, of which {used_bytes / 1e9:.2f} GB are used: "
                "raise host_bytes of the node cache's weights, or stage fewer models"
            )
        available_bytes = self._unclaimed_bytes(used_bytes)
        if num_bytes > available_bytes:
            raise NoRoom(
                f"{num_bytes / 1e9:.2f} GB of weights don't fit into this node's memory, of which "
                f"{max(0, available_bytes) / 1e9:.2f} GB are free: use nodes with more memory, or "
                "lower host_bytes of the node cache (KV) or of its weights, so that less is kept"
            )


def _made(file: WeightFile, undo: ExitStack) -> ArrivingFile:
    try:
        made = ArrivingFile.in_memory(file)
    except OSError as error:
        raise NoRoom(
            f"no file can be made in memory: {error.strerror}: raise the limit on open files of "
            "the node cache (ulimit -n)"
        ) from error
    undo.callback(made.close)
    return made
