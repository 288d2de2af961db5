"""What the autoscaler ordered last for one model. Takes what it is told; must not know engines."""

import math
from collections.abc import Callable, Mapping

from app.autoscaling_messages import ModelOrders
from cache_tiers.rung import Rung
from engine.rung_messages import RungOrder

STALE_S = 10.0
"""An autoscaler that was not heard for so long is as good as none, and one with an earlier epoch is
believed; orders come once a second.
"""

_RUNGS = (Rung.PARKED, Rung.SERVING)
"""On which a replica can stand."""


class LastOrders:
    """Of one model; nothing until the first ones come."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._place: tuple[int, int] | None = None
        """Epoch and sequence."""
        self._heard_s = 0.0
        self._rungs: Mapping[str, Rung] = {}
        self._next_ready_s: float | None = None
        """By this process's clock."""

    def take(self, orders: ModelOrders, epoch: int, sequence: int) -> bool:
        """False for older ones, which change nothing."""
        place = (epoch, sequence)
        if self._place is not None and place < self._place:
            is_same_epoch = epoch == self._place[0]
            if is_same_epoch or self.is_heard:
                return False
        now_s = self._clock()
        self._place, self._heard_s = place, now_s
        self._rungs = {id_: rung for id_, rung in orders.rungs.items() if rung in _RUNGS}
        left_s = orders.next_ready_s
        is_known = left_s is not None and math.isfinite(left_s) and left_s >= 0
        self._next_ready_s = now_s + left_s if is_known and left_s is not None else None
        return True

    @property
    def was_heard(self) -> bool:
        """Once at least."""
        return self._place is not None

    @property
    def is_heard(self) -> bool:
        """Somebody scales the model, as far as can be told."""
        return self._place is not None and self._clock() - self._heard_s <= STALE_S

    @property
    def next_ready_s(self) -> float | None:
        """From now, until another replica serves; None: nobody promises one."""
        if self._next_ready_s is None or not self.is_heard:
            return None
        return max(0.0, self._next_ready_s - self._clock())

    def rung_order(self, engine_id: str) -> RungOrder | None:
        """None: it stays as it is, as does everything when nobody has decided lately."""
        rung = self._rungs.get(engine_id)
        if rung is None or self._place is None or not self.is_heard:
            return None
        return RungOrder(rung, *self._place)
