"""The planner's time: never goes back, whatever the observer's clock does. Reads no clock."""

import math
from dataclasses import replace

from autoscaler.observation import ModelObservation

_LARGEST_S = 1e12
"""Beyond it a double no longer tells milliseconds apart."""
_GAP_S = 60.0
_LONGEST_GAP_S = 3600.0


class PlanClock:
    """Owner of the offset between the observer's clock and the planner's time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """The planner's time."""
        self.local_s = 0.0
        """Seconds since 1970, for the time of day."""
        self.offset_s = 0.0
        """What the observer's clock lacks of the planner's time."""
        self._has_begun = False

    def advance(self, now_s: float, local_s: float) -> str | None:
        """Take in both clocks. What was odd about them, if anything."""
        before_s = self.now_s
        fault = self._advance(now_s)
        if math.isfinite(local_s) and 0 <= local_s < _LARGEST_S:
            self.local_s = local_s
        else:
            self.local_s += self.now_s - before_s
            fault = fault or f"the wall clock says {local_s}"
        return fault

    def shifted(self, observation: ModelObservation) -> ModelObservation:
        """With its times as the planner counts them."""
        if observation.starting is None:
            return observation
        starting = tuple(
            replace(each, asked_s=each.asked_s + self.offset_s) for each in observation.starting
        )
        return replace(observation, starting=starting)

    def _advance(self, now_s: float) -> str | None:
        if not abs(now_s) <= _LARGEST_S:
            return f"the clock says {now_s}"
        if not self._has_begun:
            self._has_begun, self.now_s = True, now_s
            return None
        passed_s = now_s + self.offset_s - self.now_s
        if passed_s < 0:
            self.offset_s -= passed_s
            return f"the clock went back by {-passed_s:.3g} s"
        # Whatever is longer makes as much known no longer so, and would only cost time.
        self.offset_s -= max(0.0, passed_s - _LONGEST_GAP_S)
        self.now_s += min(passed_s, _LONGEST_GAP_S)
        return f"nothing was seen for {passed_s:.0f} s" if passed_s > _GAP_S else None
