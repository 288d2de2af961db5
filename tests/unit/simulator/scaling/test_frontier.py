"""The clairvoyant's schedule is the cheapest there is, and its bound is below it."""

from itertools import product

import numpy as np
import pytest

from simulator.scaling.frontier import Frontier
from simulator.scaling.rate_replay import oracle_sizes
from simulator.scaling.view import ScalingSetting


def cheapest_by_trying(needs: list[int], lead_ticks: int, most_changes: int) -> int:
    """Replica-ticks of the best schedule without a late request, of all there are."""
    best = 10**9
    for sizes in product(range(1, max(needs) + 1), repeat=len(needs)):
        steps = np.diff(sizes)
        if np.count_nonzero(steps) > most_changes or any(
            size < need for size, need in zip(sizes, needs, strict=True)
        ):
            continue
        best = min(best, sum(sizes) + max(0, lead_ticks - 1) * int(steps[steps > 0].sum()))
    return best


@pytest.mark.parametrize("lead_s", [30.0, 90.0])
@pytest.mark.parametrize("most_changes", [1, 2, 6])
def test_it_is_the_best_of_all_schedules(lead_s: float, most_changes: int) -> None:
    needs = [1, 1, 3, 2, 1, 3, 3, 1]
    setting = ScalingSetting(1.0, lead_s, tick_s=30.0)
    counts = np.array(needs) * 30
    days = len(needs) * 30 / 86_400
    point = Frontier(counts, setting).point(0.0, most_changes / days)
    best = cheapest_by_trying(needs, round(lead_s / 30), most_changes)
    oracle = int(oracle_sizes(counts, setting).sum())
    assert point.late_fraction == 0
    # Between the prices that have few and those that have many changes lie schedules that no
    # price yields: never better than the best, and the bound is never above it.
    assert point.bound <= best / oracle + 1e-9
    assert best / oracle - 1e-9 <= point.cost <= 1.2 * best / oracle


def test_more_changes_and_more_lateness_cost_less() -> None:
    draw = np.random.default_rng(0)
    counts = draw.poisson(10 + 8 * np.sin(np.arange(300) / 25)) * 10
    frontier = Frontier(counts, ScalingSetting(4.0, 60.0))
    tight, late, lively = (
        frontier.point(*limits).cost for limits in ((1e-2, 150), (5e-2, 150), (1e-2, 600))
    )
    assert late < tight
    assert lively < tight
    assert min(late, lively) >= 1 - 0.03
