"""The load of one model some time ahead, as a distribution. Knows no replicas and does no I/O.

The load is in replicas' worth, so that one model's numbers compare with another's. Forecasts are
made when a step closes, for a ladder of horizons, and scored when their time has come.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecast.experts import EXPERTS, Experts
from autoscaler.forecast.pool import ExpertPool
from autoscaler.forecast.series import LoadSeries, Step
from autoscaler.forecast.spread import FLOOR, Errors, Jitter, Ratios
from autoscaler.forecast.window_means import LAST, WINDOWS
from autoscaler.plan import ExpertWeight, ForecastRecord

STEP_S = 10.0
"""What comes and goes within a step is a matter of queues, not of sizes."""
HORIZONS = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 135, 200)
"""In steps; between them forecasts are interpolated."""
GAP_FORGOTTEN_S = 120.0
_SURE = 2.0
"""Standard deviations that a mean of the last steps may be off."""
COVERAGE_MEMORY_S = 86_400.0
MIN_COVERED = 100


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """Of one time, at one level."""

    centre: float
    """About what is expected."""
    scale: float
    """How far off that may be: about a standard deviation."""
    ratio: float
    """Scales above the centre that the load stays below, at the level asked for."""

    @property
    def value(self) -> float:
        """The quantile."""
        return max(0.0, self.centre + self.ratio * self.scale)


class DemandForecaster:
    """Forecasts of one model's load, at any lead up to half an hour, for one quantile."""

    def __init__(self, step_s: float = STEP_S, *, level: float = 0.98) -> None:
        """``level``: the quantile that decisions rest on; experts are weighted by it."""
        self.step_s = step_s
        self.level = level
        self._series = LoadSeries(step_s)
        self._ahead = np.array(HORIZONS)
        self.horizons_s = self._ahead * step_s
        num_horizons, num_experts = len(HORIZONS), len(EXPERTS)
        self._experts = Experts(step_s, self._ahead)
        self._pool = ExpertPool(self._ahead, num_experts)
        self._jitter = Jitter()
        self._expert_errors = Errors(self._ahead, num_experts)
        self._errors = Errors(self._ahead, 1)
        self._ratios = Ratios(step_s, self._ahead)
        self._coverage_gain = -math.expm1(-step_s / COVERAGE_MEMORY_S)
        self._coverage = np.zeros(num_horizons)
        self._num_scored = np.zeros(num_horizons)
        size = HORIZONS[-1] + 1
        self._past = np.full((size, num_horizons, num_experts), np.nan)
        self._past_margins = self._past.copy()
        self._past_centres = np.full((size, num_horizons), np.nan)
        self._past_scales = self._past_centres.copy()
        self._past_values = self._past_centres.copy()
        self._now = self._past[0].copy()
        self._centres = np.full(num_horizons, np.nan)
        self._scales = self._centres.copy()
        self._level_ratios = self._find_ratios()
        self._num_unknown = 0
        self._num_closed = 0

    @property
    def last(self) -> float | None:
        """The load now, a mean of the last steps; None before any."""
        last = self._experts.last
        return None if math.isnan(last) else last

    @property
    def is_blind(self) -> bool:
        """Nothing was known for the last two minutes, or ever."""
        return self.last is None or self._num_unknown * self.step_s >= GAP_FORGOTTEN_S

    def observe(self, now_s: float, local_s: float, load: float | None) -> None:
        """The mean load since the tick before, in replicas' worth; None: unknown."""
        for step in self._series.add(now_s, local_s, load):
            self._close(step)

    def use_level(self, level: float) -> None:
        """As ``level`` of the constructor, from now on."""
        if level != self.level:
            self.level = level
            self._level_ratios = self._find_ratios()

    def at(self, horizon_s: float, level: float | None = None) -> LoadForecast:
        """Of the load so far ahead, at ``level``, or at that of all decisions; raises before
        anything was observed.
        """
        if self.last is None:
            raise ValueError("nothing was observed yet, so nothing can be forecast: hold the size")
        row, share = self._row(horizon_s)
        low, high = self._row_at(row, level), self._row_at(min(row + 1, len(HORIZONS) - 1), level)
        return LoadForecast(
            low.centre + share * (high.centre - low.centre),
            low.scale + share * (high.scale - low.scale),
            low.ratio + share * (high.ratio - low.ratio),
        )

    def record(self, horizon_s: float) -> ForecastRecord:
        """Why a forecast is what it is."""
        row, share = self._row(horizon_s)
        row += round(share)
        said = self.at(horizon_s)
        is_covered = self._num_scored[row] >= MIN_COVERED
        experts = zip(EXPERTS, self._pool.weights[row], self._now[row], strict=True)
        return ForecastRecord(
            horizon_s=horizon_s,
            quantile=self.level,
            value=said.value,
            last_value=self.last or 0.0,
            calibration=said.value - said.centre,
            coverage=float(self._coverage[row]) if is_covered else None,
            experts=tuple(ExpertWeight(name, float(w), float(v)) for name, w, v in experts),
        )

    def _find_ratios(self) -> NDArray[np.float64]:
        return np.array([self._ratios.quantile(row, self.level) for row in range(len(HORIZONS))])

    def _row(self, horizon_s: float) -> tuple[int, float]:
        """The last horizon not beyond it, and how far it lies towards the next one."""
        at = float(np.interp(horizon_s, self.horizons_s, np.arange(len(HORIZONS))))
        return int(at), at - int(at)

    def _row_at(self, row: int, level: float | None) -> LoadForecast:
        if level is None or level == self.level:
            ratio = float(self._level_ratios[row])
        else:
            ratio = self._ratios.quantile(row, level)
        return LoadForecast(float(self._centres[row]), float(self._scales[row]), ratio)

    def _close(self, step: Step) -> None:
        slot = step.index % len(self._past)
        self._num_closed += 1
        if step.load is None:
            self._num_unknown += 1
            self._past_scales[slot] = np.nan
            return
        if self._num_unknown:
            self._jitter.forget_recent()
        if self._num_unknown * self.step_s >= GAP_FORGOTTEN_S:
            self._experts.forget_recent()
        elif self.last == 0 and step.load > 0:
            # Nobody foresees the first requests after a time without: there is nothing to learn.
            self._experts.forget_recent()
            self._jitter.forget_recent()
            self._past_scales[:] = np.nan
        self._num_unknown = 0
        self._jitter.observe(step.load)
        self._experts.observe(step.load, step.end_local_s)
        self._score(step.index, step.load)
        self._predict(slot, step.end_local_s)

    def _score(self, index: int, load: float) -> None:
        then = (index - self._ahead) % len(self._past)
        rows = np.flatnonzero(~np.isnan(self._past_scales[then, np.arange(len(then))]))
        if not len(rows):
            return
        then = then[rows]
        # Jitter is no fault of a forecaster: the load now is what it is judged by.
        last = self._experts.last
        said, centres = self._past[then, rows], self._past_centres[then, rows]
        self._pool.score(rows, load - said, self._past_margins[then, rows], self.level)
        self._expert_errors.score(rows, last - said, last)
        self._errors.score(rows, last - centres[:, None], last)
        self._ratios.score(rows, (load - centres) / self._past_scales[then, rows])
        self._num_scored[rows] += 1
        gains = np.maximum(self._coverage_gain, 1 / self._num_scored[rows])
        held = load <= self._past_values[then, rows]
        self._coverage[rows] += gains * (held - self._coverage[rows])
        # They move slowly: one horizon in turn.
        row = self._num_closed % len(HORIZONS)
        self._level_ratios[row] = self._ratios.quantile(row, self.level)

    def _predict(self, slot: int, local_s: float) -> None:
        last = self._experts.last
        jitter = self._jitter.deviation(last) + FLOOR
        self._now = self._experts.predict(local_s)
        # What is there now is seen, whatever was right before it came.
        least = last - _SURE * jitter / math.sqrt(WINDOWS[LAST])
        self._centres = np.maximum((self._pool.weights * self._now).sum(1), least)
        self._scales = np.hypot(jitter, self._errors.deviations(last)[:, 0])
        ratios = self._level_ratios[:, None]
        self._past[slot] = self._now
        self._past_margins[slot] = ratios * np.hypot(jitter, self._expert_errors.deviations(last))
        self._past_centres[slot], self._past_scales[slot] = self._centres, self._scales
        self._past_values[slot] = self._centres + self._level_ratios * self._scales
