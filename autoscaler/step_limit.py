"""How far a size may move at once. Reads no clock."""

_GROWTH = 4.0
"""Times what it was half a minute ago."""
_LEAST_GROWTH = 8
_PERIOD_S = 30.0


class StepLimit:
    """Owner of the size that a model had when the period began.

    A load that is wrong by orders of magnitude costs four times the fleet at most before somebody
    sees it; one that is real and triples is not held back.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._base = 0

    def most(self, now_s: float, current: int) -> int:
        """That may be asked for now."""
        if self._began_s is None or now_s - self._began_s >= _PERIOD_S or current < self._base:
            self._began_s, self._base = now_s, current
        return max(round(_GROWTH * self._base), self._base + _LEAST_GROWTH)

    @staticmethod
    def least(current: int) -> int:
        """Half may go at once."""
        return current // 2
