"""Virtual time: a queue of what is due, carried out in order. Must not know what happens.

Deterministic: what is due at the same time happens in the order in which it was asked for.
"""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class VirtualClock:
    """Owner of the time, which starts at 0 and jumps from one action to the next."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_actions = 0
        """Carried out so far."""
        self._due: list[tuple[float, int, Action]] = []
        self._num_asked = 0

    def at(self, when_s: float, action: Action) -> None:
        """Carry ``action`` out at ``when_s``, or now if that has passed."""
        self._num_asked += 1
        heapq.heappush(self._due, (max(when_s, self.now_s), self._num_asked, action))

    def run(self, until_s: float | None = None) -> None:
        """Until nothing is due any more, or nothing before or at ``until_s``."""
        due = self._due
        while due and (until_s is None or due[0][0] <= until_s):
            self.now_s, _, action = heapq.heappop(due)
            self.num_actions += 1
            action()
        if until_s is not None:
            self.now_s = max(self.now_s, until_s)
