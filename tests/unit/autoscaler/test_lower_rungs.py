from itertools import pairwise

from autoscaler.config import ModelScalingConfig
from autoscaler.forecast.forecaster import DemandForecaster
from autoscaler.lower_rungs import LowerRungs, Peak
from tests.unit.autoscaler.fleets import NOON_S

CONFIG = ModelScalingConfig(name="m")


class Wanted:
    """What is wanted as the load passes, ten seconds at a time."""

    def __init__(self, *, cold_lead_s: float = 60.0, node_lead_s: float = 180.0) -> None:
        self.now_s = 0.0
        self.leads_s = {"cold_lead_s": cold_lead_s, "node_lead_s": node_lead_s}
        self.forecaster = DemandForecaster()
        self.lower = LowerRungs(self.forecaster)

    def see(self, *loads: float | None) -> list[tuple[int, int, int]]:
        """Staged, with weights, nodes: after each load."""
        wanted = []
        for load in loads:
            self.now_s += 10.0
            self.forecaster.observe(self.now_s, NOON_S + self.now_s, load)
            self.lower.update(self.now_s, CONFIG, **self.leads_s)
            lower = self.lower
            wanted.append((lower.num_staged, lower.num_with_weights, lower.num_nodes))
        return wanted


def test_a_peak_lasts_for_its_time_and_no_longer() -> None:
    peak = Peak()
    values = [5, 3, 4, 1, 1, 1, 1]
    assert [peak.update(at, value, 2.0) for at, value in enumerate(values)] == [
        5, 5, 5, 4, 4, 1, 1,
    ]  # fmt: skip


def test_the_cheaper_a_rung_the_more_of_it() -> None:
    wanted = Wanted()
    staged, with_weights, nodes = wanted.see(*[3.0, 5.0, 2.0, 4.0, 3.0, 6.0] * 20)[-1]
    assert nodes <= staged <= with_weights
    assert nodes < with_weights


def test_what_was_right_a_moment_ago_is_not_dropped() -> None:
    wanted = Wanted()
    wanted.see(*[4.0, 4.5] * 30)
    before = wanted.see(4.0)[-1]
    later = wanted.see(*[1.0] * 30)
    assert later[0][:2] == before[:2]
    num_changes = [sum(a != b for a, b in pairwise(each)) for each in zip(*later, strict=True)]
    assert all(0 < num <= 6 for num in num_changes)
    assert later[-1][0] < before[0]


def test_nodes_that_take_long_are_wanted_before_replicas_are() -> None:
    climbing = [2.0 + 0.05 * step for step in range(120)]
    soon, late = Wanted(node_lead_s=1.0), Wanted(node_lead_s=900.0)
    assert soon.see(*climbing)[-1][2] < late.see(*climbing)[-1][2]


def test_what_is_unknown_changes_nothing() -> None:
    wanted = Wanted()
    assert wanted.see(None, None)[-1] == (0, 0, 0)
    before = wanted.see(*[3.0] * 30)[-1]
    assert wanted.see(*[None] * 100)[-1] == before
