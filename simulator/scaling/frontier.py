"""What somebody who knows all arrivals would pay: the least cost at a share of late requests and a
number of changes a day. Beside the oracle, who changes every tick and pays for no start, it says
how much of a policy's cost is owed to the lead and to few changes, and how much to not knowing.

Sizes change at multiples of ``_BUCKET_S`` and are paid from when a start is asked for, so that each
replica more costs the lead as well. For a price of a late request and one of a change, dynamic
programming over sizes finds the cheapest schedule exactly, if requests that wait made nobody else
late; the prices are then searched. So there are two figures:

- ``cost``: of the best schedule that was found, replayed with all that waits: it can be had.
- ``bound``: Lagrange's lower bound over the prices tried: less is impossible (with changes at those
  times), whatever the schedule.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from simulator.errors import SimulationError
from simulator.scaling.rate_replay import oracle_sizes
from simulator.scaling.rate_trace import DAY_S, Counts, Vector
from simulator.scaling.view import ScalingSetting

_BUCKET_S = 30.0
_NUM_PRICES = 8
"""Halvings of each price's range."""
_LATE_PRICES = (1e-3, 1e4)
_CHANGE_PRICES = (1e-2, 1e5)


class FrontierPoint(msgspec.Struct, frozen=True):
    """Costs are over the oracle's."""

    late_fraction: float
    cost: float
    changes_per_day: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Schedule:
    sizes: Counts
    """By tick."""
    late: float
    """Requests, with all that waits."""
    cost: float
    """Replica-ticks."""
    num_changes: int
    relaxed: float
    """The programme's value."""


class Frontier:
    """Of one trace and setting; owner of what its schedules share."""

    def __init__(self, counts: Counts, setting: ScalingSetting) -> None:
        self._setting = setting
        self._bucket = max(1, round(_BUCKET_S / setting.tick_s))
        num_buckets = len(counts) // self._bucket
        if num_buckets < 2:
            raise SimulationError("a clairvoyant needs a trace of a minute or more")
        self._counts = counts[: num_buckets * self._bucket]
        self._oracle = int(oracle_sizes(self._counts, setting).sum())
        self._days = len(self._counts) * setting.tick_s / DAY_S
        most = int(oracle_sizes(self._counts, setting).max())
        self._sizes = _sizes(most)
        self._late = self._late_table(num_buckets)
        # Whoever asks at the start of a tick pays for it as one that serves.
        self._start_ticks = max(0, int(np.ceil(setting.lead_s / setting.tick_s)) - 1)

    def point(self, late_fraction: float, changes_per_day: float) -> FrontierPoint:
        """The cheapest with no more than both."""
        most_late = late_fraction * int(self._counts.sum())
        most_changes = changes_per_day * self._days
        best: _Schedule | None = None
        bound = 0.0
        late_prices = _PriceSearch(*_LATE_PRICES)
        for late_price in late_prices:
            within = None
            change_prices = _PriceSearch(*_CHANGE_PRICES)
            for change_price in change_prices:
                found = self._programme(late_price, change_price)
                dual = found.relaxed - late_price * most_late - change_price * most_changes
                bound = max(bound, dual)
                has_few = found.num_changes <= most_changes
                change_prices.is_enough = has_few
                if has_few:
                    within = found
            late_prices.is_enough = within is not None and within.late <= most_late
            if within is not None and late_prices.is_enough:
                best = within if best is None or within.cost < best.cost else best
        if best is None:
            raise SimulationError(
                f"no schedule has {late_fraction:.2%} late requests and {changes_per_day:g} changes"
            )
        return FrontierPoint(
            best.late / int(self._counts.sum()),
            best.cost / self._oracle,
            best.num_changes / self._days,
            bound / self._oracle,
        )

    def _late_table(self, num_buckets: int) -> Vector:
        """Requests beyond the capacity of each tick: [num_buckets, num_sizes]."""
        capacity = self._sizes * self._setting.replica_rps * self._setting.tick_s
        ticks = self._counts.reshape(num_buckets, self._bucket)
        late = np.zeros((num_buckets, len(self._sizes)))
        for column in range(self._bucket):
            late += np.maximum(0.0, ticks[:, column, None] - capacity)
        return late

    def _programme(self, late_price: float, change_price: float) -> _Schedule:
        """Cheapest path through [bucket, size], forwards; then back along its choices."""
        sizes, start = self._sizes, self._start_ticks
        held = self._bucket * sizes
        numbers = np.arange(len(sizes))
        came_from: npt.NDArray[np.int16] = np.empty(self._late.shape, dtype=np.int16)
        value = held + late_price * self._late[0]
        for bucket in range(1, len(self._late)):
            # From below a size costs its start; from above nothing but the change.
            below, below_from = _running_least(value - start * sizes)
            above, above_from = _running_least(value[::-1])
            up = below + start * sizes
            down, down_from = above[::-1], len(sizes) - 1 - above_from[::-1]
            moved = np.minimum(up, down) + change_price
            stays = value <= moved
            moved_from = np.where(up < down, below_from, down_from)
            came_from[bucket] = np.where(stays, numbers, moved_from)
            value = np.where(stays, value, moved) + held + late_price * self._late[bucket]
        return self._follow(came_from, value)

    def _follow(self, came_from: npt.NDArray[np.int16], value: Vector) -> _Schedule:
        number = int(value.argmin())
        path = np.empty(len(came_from), dtype=np.int64)
        for bucket in range(len(came_from) - 1, -1, -1):
            path[bucket] = number
            number = int(came_from[bucket, number]) if bucket else number
        chosen = self._sizes[path]
        steps = np.diff(chosen)
        cost = float(self._bucket * chosen.sum() + self._start_ticks * steps[steps > 0].sum())
        sizes = np.repeat(chosen, self._bucket).astype(np.int64)
        return _Schedule(
            sizes, self._replayed_late(sizes), cost, int((steps != 0).sum()), float(value.min())
        )

    def _replayed_late(self, sizes: Counts) -> float:
        capacities = (sizes * self._setting.replica_rps * self._setting.tick_s).tolist()
        queue = late = 0.0
        for capacity, arrived in zip(capacities, self._counts.tolist(), strict=True):
            queue = max(0.0, queue + arrived - capacity)
            late += min(arrived, queue)
        return late


class _PriceSearch(Iterator[float]):
    """Prices, geometrically: lower ones once a price ``is_enough``."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high
        self._left = _NUM_PRICES
        self._price: float | None = None
        self.is_enough = False

    def __next__(self) -> float:
        if self._price is not None:
            if self.is_enough:
                self._high = self._price
            else:
                self._low = self._price
        if self._left == 0:
            raise StopIteration
        self._left -= 1
        self._price = float(np.sqrt(self._low * self._high))
        return self._price


def _running_least(values: Vector) -> tuple[Vector, Counts]:
    """The least value so far, and where it is."""
    least = np.minimum.accumulate(values)
    positions = np.where(values == least, np.arange(len(values)), 0)
    return least, np.maximum.accumulate(positions).astype(np.int64)


def _sizes(most: int) -> Counts:
    """All of them while they are few; of large fleets steps of 1 %."""
    if most <= 300:
        return np.arange(1, most + 1)
    steps = np.unique(np.geomspace(100, most, round(np.log(most / 100) / 0.01)).astype(np.int64))
    return np.concatenate([np.arange(1, 100), steps])
