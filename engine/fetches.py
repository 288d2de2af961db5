"""Requests that wait until the node has looked for their prefix, outside of the scheduler.

Must not know the connection, blocks or plans.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from cache_tiers.messages import Partial
from engine.sequence import Sequence


@dataclass(slots=True)
class WaitingRequest:
    """A request whose prefix is being fetched."""

    samples: list[Sequence]
    """That have not ended; never empty."""
    expires_s: float
    """On the engine's clock: then it goes on without."""
    partials: list[Partial]
    """That were asked for."""


class Fetches:
    """Owner of the fetches that were not answered yet."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, WaitingRequest] = {}

    def __len__(self) -> int:
        """Sequences, all samples."""
        return sum([len(request.samples) for request in self._waiting.values()])

    @property
    def sequences(self) -> Iterator[Sequence]:
        for request in self._waiting.values():
            yield from request.samples

    def next_id(self) -> int:
        return next(self._ids)

    def wait(self, fetch_id: int, request: WaitingRequest) -> None:
        self._waiting[fetch_id] = request

    def answered(self, fetch_id: int) -> WaitingRequest | None:
        """It waits no longer; None if it did not wait, or not any more."""
        return self._waiting.pop(fetch_id, None)

    def leave(self, sequence: Sequence) -> int | None:
        """One that waits ends; returns the fetch that nobody waits for any more."""
        for fetch_id, request in self._waiting.items():
            if sequence in request.samples:
                request.samples.remove(sequence)
                if not request.samples:
                    del self._waiting[fetch_id]
                    return fetch_id
                return None
        raise AssertionError("a sequence leaves that does not wait for the node")

    def expired(self, now_s: float) -> list[int]:
        return [i for i, request in self._waiting.items() if request.expires_s <= now_s]

    @property
    def expires_s(self) -> float | None:
        """When the next one does; None if nobody waits."""
        return min((request.expires_s for request in self._waiting.values()), default=None)

    def take_all(self) -> list[WaitingRequest]:
        requests = list(self._waiting.values())
        self._waiting.clear()
        return requests
