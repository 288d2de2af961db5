"""Items that threads work off side by side, until none is left or nobody waits any more.

A thread that waits for a network can't be stopped, but kept from memory that is no longer its own:
whoever closes a batch knows that nothing reads or writes an image's memory from then on. Must not
know what the work is.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from cache_tiers.object.bucket import BucketFailed


class Outcome(Enum):
    """Of one item."""

    OPEN = "open"
    """Not tried, failed, or too late."""
    DONE = "done"
    MISSING = "missing"
    UNSOUND = "unsound"


class Batch:
    """Owner: one call of ``ObjectTier``, which reads the results once the batch is closed."""

    def __init__(self, num_items: int) -> None:
        self.outcomes = [Outcome.OPEN] * num_items
        self.failure: str | None = None
        """The first one. No item is begun after it: a store that failed after its retries needs a
        rest, and behind a hole a prefix is of no use.
        """
        self._next = 0
        self._is_open = True
        self._lock = threading.Lock()

    def run(self, work: Callable[[int], Outcome]) -> None:
        """In each of the threads. ``work`` raises ``BucketFailed``."""
        while (index := self._take()) is not None:
            try:
                outcome = work(index)
            except BucketFailed as error:
                self.fail(str(error))
                return
            with self.memory() as is_ours:
                if is_ours:
                    self.outcomes[index] = outcome

    def is_open(self) -> bool:
        """Whether anybody waits still; it may end at any moment."""
        return self._is_open

    @contextmanager
    def memory(self) -> Iterator[bool]:
        """Whether images may be touched; it stays so within the context. Be quick there."""
        with self._lock:
            yield self._is_open

    def fail(self, reason: str) -> None:
        with self._lock:
            if self._is_open and self.failure is None:
                self.failure = reason

    def close(self) -> None:
        """Results and memory are the owner's again."""
        with self._lock:
            self._is_open = False

    def _take(self) -> int | None:
        with self._lock:
            index = self._next
            if not self._is_open or self.failure is not None or index == len(self.outcomes):
                return None
            self._next += 1
            return index
