"""When sleepers are needed now, whatever is forecast: forecasts are made of minutes.

Two signs: what came in the last seconds is more than those who serve take; or what waits is late
already. After either nobody goes to sleep for a minute. Reads no clock.
"""

import math

from autoscaler.model_view import Sight

_MEAN_S = 5.0
_AWAKE_S = 60.0
_MARGIN = 1.1


class Urgency:
    """Owner of the load of the last seconds of one model."""

    def __init__(self) -> None:
        self._load: float | None = None
        self._urgent_s = -math.inf

    def least_serving(self, sight: Sight, num_serving: int, ttft_target_s: float) -> int:
        """That should serve now, where ``num_serving`` do; 0: no hurry. More may be asked for than
        there are."""
        load = self._observe(sight)
        if sight.backlog_replica_s > ttft_target_s * max(1, sight.num_ready):
            # What comes now is late for what waits: whoever is there helps.
            self._urgent_s = sight.now_s
            return max(num_serving, sight.num_there)
        if load > num_serving:
            self._urgent_s = sight.now_s
            return math.ceil(_MARGIN * load)
        return num_serving if sight.now_s - self._urgent_s <= _AWAKE_S else 0

    def _observe(self, sight: Sight) -> float:
        if sight.load is not None:
            before = sight.load if self._load is None else self._load
            kept = math.exp(-sight.passed_s / _MEAN_S)
            self._load = kept * before + (1 - kept) * sight.load
        return self._load or 0.0
