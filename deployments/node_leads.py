"""How long nodes take from being asked for until they could take a model's weights. Pure.

Whoever asks counts in bundles: those asked for that find no room on nodes that are ready are on
their way. Reads no clock; must not know who brings nodes.
"""

from collections import deque
from collections.abc import Iterable, Set

NUM_KEPT = 20
LONGEST_S = 7200.0
"""What nobody brings in that time wasn't waited for."""


class NodeLeads:
    """Owner of what was measured."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=NUM_KEPT)
        self._asked_s: list[float] = []
        """Of each bundle that is on its way, oldest first."""
        self._seen: set[str] | None = None
        """Nodes that were ready once: one that fell silent and comes back is none that was asked
        for."""

    @property
    def times_s(self) -> tuple[float, ...]:
        """Oldest first."""
        return tuple(self._times_s)

    def recall(self, times_s: Iterable[float]) -> None:
        """What an autoscaler before measured."""
        self._times_s = deque([*times_s, *self._times_s], maxlen=NUM_KEPT)

    def update(self, now_s: float, num_missing: int, ready: Set[str]) -> None:
        """``num_missing``: bundles that are on their way; ``ready``: nodes that could hold one."""
        asked_s = self._asked_s
        if self._seen is None:
            # Nobody knows since when these were asked for.
            self._asked_s = [float("-inf")] * num_missing
            self._seen = set(ready)
            return
        num_new = len(ready - self._seen)
        self._seen |= ready
        if num_new:
            # A node may hold several, and those that were asked for first have theirs first.
            num_served = max(num_new, len(asked_s) - num_missing)
            times_s = [now_s - each_s for each_s in asked_s[:num_served]]
            self._times_s.extend(each for each in times_s[:num_new] if each <= LONGEST_S)
            asked_s = asked_s[num_served:]
        # The newest are given up first.
        asked_s = asked_s[:num_missing]
        self._asked_s = [*asked_s, *[now_s] * (num_missing - len(asked_s))]
