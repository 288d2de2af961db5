"""How much of what the capacity model promises a fleet really serves in time: learned, bounded.

    late, though the load is well within the replicas, and nothing waits  ->  less, in minutes
    late at the limit, and fewer begin than the model promises            ->  less, in minutes
    in time for a minute at more load than the model says they take       ->  more, slower
    none of these                                                         ->  back to 1 in hours

Without the last rule a correction that was wrong once would stay for ever: what it lowers the
load per replica to never proves it wrong. Must not know steps or forecasts.
"""

import math
from dataclasses import dataclass

from autoscaler.window import Totals

_LEAST, _MOST = 0.4, 2.5
_LOWER_S = 120.0
"""Time constants."""
_RAISE_S = 300.0
_FORGET_S = 2 * 3600.0
_SETTLED_S = 60.0
"""What comes late sooner after a shortage is still the shortage's, and what a surge makes late
shows as its answers end."""
_RECENT_S = 30.0
_LATE_SHARE = 0.02
_NUM_LATE = 5
_NUM_IN_TIME = 50
_WITHIN = 0.9
_BEYOND = 1.05


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """How a fleet stands now."""

    load: float
    """Of the last half minute, in replicas, with the correction as it is."""
    num_ready: int
    num_waiting: float
    """At gateways and engines."""
    promised_rate: float
    """Requests/s that all that are ready serve by the model, corrected."""
    recent: Totals
    """Of the last half minute."""


class Correction:
    """Owner of the factor on a replica's rate."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.is_lowering = False
        """Targets are missed at a load that should be served in time."""
        self._calm_s = 0.0
        self._beyond_s = 0.0
        """With more load than the replicas should take, in time."""
        self._promised = 0.0
        """Mean rate of the last half minute."""

    def update(self, passed_s: float, served: ServedLoad) -> None:
        """``passed_s`` since the last one."""
        passed_s = min(passed_s, 10.0)
        self.is_lowering = False
        if served.num_ready == 0:
            self._calm_s = self._beyond_s = 0.0
            return
        use = served.load / served.num_ready
        # Over as long as what is served is counted: replicas that just came have begun nothing.
        gain = -math.expm1(-passed_s / _RECENT_S)
        self._promised += gain * (served.promised_rate - self._promised)
        recent = served.recent
        is_full = served.num_waiting > served.promised_rate
        self._calm_s = 0.0 if is_full or use > _WITHIN else self._calm_s + passed_s
        late = max(
            _share(recent.num_ttft_late, recent.num_begun),
            _share(recent.num_tpot_late, recent.num_ended),
        )
        num_late = recent.num_ttft_late + recent.num_tpot_late
        is_late = late > _LATE_SHARE and num_late >= _NUM_LATE
        is_beyond = use > _BEYOND and not is_full and recent.num_begun >= _NUM_IN_TIME
        self._beyond_s = self._beyond_s + passed_s if is_beyond and not is_late else 0.0
        if is_late:
            if self._calm_s >= _SETTLED_S or (is_full and self._begins_too_few(recent)):
                self.is_lowering = True
                self._move(-passed_s / _LOWER_S * min(1.0, late / 0.1))
        elif self._beyond_s >= _SETTLED_S:
            self._move(passed_s / _RAISE_S)
        else:
            self.factor = self.factor ** math.exp(-passed_s / _FORGET_S)

    def _begins_too_few(self, recent: Totals) -> bool:
        is_enough = recent.num_known_s >= _RECENT_S / 2
        return is_enough and recent.num_begun < _WITHIN * self._promised * recent.num_known_s

    def _move(self, log_step: float) -> None:
        self.factor = min(_MOST, max(_LEAST, self.factor * math.exp(log_step)))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
