"""How many replicas one model needs when those that are asked for now are ready. No I/O, no ladder.

The size to go to is the forecast's quantile at the newsvendor's ratio. It is gone to only when the
present size is far from it, in units of how far off forecasts are: a change costs something, and
most differences pass. Coming down asks for more distance than going up, since the way back takes a
lead, and right after a way down the way up asks for more, since most of those are jitter.
"""

import math
from dataclasses import dataclass

from autoscaler.forecast.forecaster import DemandForecaster, LoadForecast
from autoscaler.plan import Cause, ForecastRecord

DRAINED_S = 120.0
"""A queue that lasts longer than a start is to be gone so long after it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How far from right a size may be before it is left, in units of how far off forecasts are."""

    raise_band: float
    """Below."""
    return_band: float
    """As much more within two leads after a way down."""
    lower_band: float
    """Above."""
    least_steps: int
    """Of the forecaster: a size stays for a while, and is to be right for so long at least."""


START_PACE = Pace(raise_band=0.95, return_band=0.9, lower_band=1.6, least_steps=10)
"""Where a way up takes a start: sizes stay for minutes."""
WAKE_PACE = Pace(raise_band=0.2, return_band=0.2, lower_band=0.8, least_steps=2)
"""Where it takes seconds, and a way down nothing."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """One answer."""

    num_replicas: int
    num_wanted: float
    """Before rounding and hysteresis."""
    causes: tuple[Cause, ...]
    """The deciding one first."""
    forecast: ForecastRecord | None
    """None: nothing was ever observed."""


class Sizer:
    """Sizes one model at one rung boundary; remembers its last change."""

    def __init__(self, forecaster: DemandForecaster, pace: Pace) -> None:
        self._forecaster = forecaster
        self._pace = pace
        self._current: int | None = None
        self._changed_s = -math.inf
        self._direction = 0

    def size(
        self, now_s: float, *, lead_s: float, current: int, ready: int, backlog: float
    ) -> Sizing:
        """Replicas (ready and pending) to have, decided at ``now_s``.

        ``lead_s`` is what a replica takes from being asked for to serving, ``backlog`` the
        replica-seconds of work that wait.
        """
        if self._current is not None and current != self._current:
            self._changed_s, self._direction = now_s, 1 if current > self._current else -1
        self._current = current
        forecaster = self._forecaster
        if forecaster.is_blind:
            return Sizing(current, float(current), (Cause.HOLD_BLIND,), None)
        horizon_s = max(lead_s, self._pace.least_steps * forecaster.step_s)
        forecast = forecaster.at(horizon_s)
        queued = _queued_load(forecast, lead_s, current, ready, backlog)
        wanted = forecast.value + queued
        num = math.ceil(wanted - 1e-9)
        cause = Cause.BACKLOG if queued >= 1 else Cause.FORECAST
        record = forecaster.record(horizon_s)
        if num != current and not self._is_worth_it(now_s, lead_s, wanted, forecast.scale):
            return Sizing(current, wanted, (Cause.HOLD_HYSTERESIS, cause), record)
        return Sizing(num, wanted, (cause,), record)

    def _is_worth_it(self, now_s: float, lead_s: float, wanted: float, scale: float) -> bool:
        assert self._current is not None
        is_recent = now_s - self._changed_s <= 2 * lead_s
        above = (self._current - wanted) / scale
        if above > 0:
            return above > self._pace.lower_band and not (is_recent and self._direction > 0)
        band = self._pace.raise_band
        if is_recent and self._direction < 0:
            band += self._pace.return_band
        return -above > band


def _queued_load(
    forecast: LoadForecast, lead_s: float, current: int, ready: int, backlog: float
) -> float:
    """Load, beside what comes then, of what still waits when a new replica is ready."""
    if backlog <= 0:
        return 0.0
    served = (ready + max(0, current - ready) / 2) * lead_s
    return max(0.0, backlog + forecast.centre * lead_s - served) / DRAINED_S
