"""What EC2 refused lately: a kind of instance in a zone and market isn't asked for again for a
while, longer each time it is refused.

Pure: the time is an argument, in seconds of any clock that doesn't go back.
"""

import threading
from dataclasses import dataclass

from deployments.aws.launch_config import Market

FIRST_BACK_OFF_S = 30.0
LONGEST_BACK_OFF_S = 600.0


@dataclass(frozen=True, slots=True)
class Place:
    """One thing that may be asked for."""

    market: Market
    instance_type: str
    zone: str
    reservation: str = ""
    """What tells capacity of one's own from other such capacity; empty where all ask the same."""


@dataclass(frozen=True, slots=True)
class Refusal:
    code: str
    """EC2's."""
    count: int
    """In a row."""
    until_s: float


class CapacityMemory:
    """Of one process, used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: dict[Place, Refusal] = {}

    def refused(self, place: Place, code: str, now_s: float) -> Refusal:
        """Doubles the back-off; several refusals while one is in force count as one."""
        with self._lock:
            last = self._refusals.get(place)
            if last is not None and now_s < last.until_s:
                return last
            # After a long silence the refusals of then say nothing.
            old = last is None or now_s >= last.until_s + LONGEST_BACK_OFF_S
            count = 1 if old or last is None else last.count + 1
            # The exponent is bounded: a float overflows after some thousand refusals.
            back_off_s = min(FIRST_BACK_OFF_S * 2.0 ** min(count - 1, 16), LONGEST_BACK_OFF_S)
            refusal = Refusal(code, count, now_s + back_off_s)
            self._refusals[place] = refusal
            return refusal

    def granted(self, place: Place) -> None:
        """Forgets its refusals."""
        with self._lock:
            self._refusals.pop(place, None)

    def in_force(self, place: Place, now_s: float) -> Refusal | None:
        """None: may be asked for."""
        with self._lock:
            refusal = self._refusals.get(place)
        return refusal if refusal is not None and now_s < refusal.until_s else None
