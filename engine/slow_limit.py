"""A limit that follows what is wanted of it without swinging: it falls soon, and rises when there
was room for long.

It turns (falls after it rose, or rises after it fell) at most once in ``TURN_S``. Takes time as an
argument; must not know what is limited.
"""

TURN_S = 10.0
_FALL_S = 0.5
"""What is wanted must lie below the limit for so long: a few slow steps are no reason."""
_FALL = 15 / 16
"""What is wanted must lie below this share of the limit: less is noise."""
_RISE = 9 / 8
"""What is wanted must lie above this multiple of the limit."""


class SlowLimit:
    """Owner of one limit, from 1 to ``most``."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.value = most
        """In force."""
        self._is_rising = False
        self._turned_s: float | None = None
        self._wants_rise = False
        self._wanted_since_s: float | None = None
        """Since when another limit is wanted, always on the same side; None while none is."""
        self._nearest = 0
        """To the one in force, of what was wanted since then."""

    def follow(self, wanted: int, now_s: float) -> None:
        """``wanted`` would be the right limit now."""
        wanted = max(1, min(wanted, self.most))
        is_below = wanted < self.value * _FALL
        is_above = wanted > self.value * _RISE or wanted == self.most > self.value
        if not is_below and not is_above:
            self._wanted_since_s = None
            return
        if self._wanted_since_s is None or is_above != self._wants_rise:
            self._wants_rise, self._wanted_since_s, self._nearest = is_above, now_s, wanted
        self._nearest = (min if is_above else max)(self._nearest, wanted)
        if now_s - self._wanted_since_s >= (TURN_S if is_above else _FALL_S) and self._can_turn(
            now_s
        ):
            self._move(now_s)

    def _can_turn(self, now_s: float) -> bool:
        is_turn = self._wants_rise != self._is_rising
        return not is_turn or self._turned_s is None or now_s - self._turned_s >= TURN_S

    def _move(self, now_s: float) -> None:
        if self._wants_rise != self._is_rising:
            self._is_rising, self._turned_s = self._wants_rise, now_s
        self.value = self._nearest
        self._wanted_since_s = None
