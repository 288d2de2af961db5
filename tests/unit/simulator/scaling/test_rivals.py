"""Published policies do what their formulas say."""

import pytest

from simulator.errors import FleetSpecError
from simulator.scaling.registry import POLICIES, create_scaling_policy
from simulator.scaling.rivals.aibrix import AibrixApa
from simulator.scaling.rivals.dynamo import DynamoPlanner, Kalman
from simulator.scaling.rivals.keda import Keda
from simulator.scaling.rivals.knative import Knative
from simulator.scaling.rivals.last_value import LastValue
from simulator.scaling.rivals.max_hour import MaxHour
from simulator.scaling.rivals.ray_default import RayDefault
from simulator.scaling.rivals.static_peak import StaticPeak
from simulator.scaling.view import ScalingPolicy, ScalingSetting, ScalingView

SETTING = ScalingSetting(4.0, 30.0)


def feed(
    policy: ScalingPolicy, *loads: float, ready: int = 1, pending: int = 0, begin: int = 0
) -> list[int]:
    """What it wants after each tick with so many replicas' worth of requests."""
    return [
        policy.size(
            ScalingView((begin + tick) * 10.0, load * 40, 0.0, load, ready, pending)
        ).num_serving
        for tick, load in enumerate(loads)
    ]


def test_last_value_holds_its_most_for_five_minutes() -> None:
    wanted = feed(LastValue(SETTING), 10, *[1.0] * 36)
    assert wanted[0] == 12
    assert wanted[29] == 12
    assert wanted[-1] == 2


def test_max_hour_remembers_an_hour() -> None:
    wanted = feed(MaxHour(SETTING), *[5.0] * 6, *[1.0] * 366)
    assert wanted[5] == wanted[364] == 5
    assert wanted[-1] == 1


def test_ray_waits_before_it_changes() -> None:
    policy = RayDefault(SETTING)
    assert feed(policy, *[3.0] * 4) == [1, 1, 3, 1]
    down = feed(RayDefault(SETTING), *[1.0] * 61, ready=3)
    assert down[:59] == [3] * 59
    assert down[59] == 1


def test_ray_obeys_its_target() -> None:
    assert feed(RayDefault(SETTING, target=0.5), *[3.0] * 3)[-1] == 6


def test_knative_panics_and_does_not_shrink_then() -> None:
    policy = Knative(SETTING)
    assert feed(policy, 7.0) == [10]
    assert feed(policy, *[0.7] * 5, ready=10, begin=1) == [10] * 5
    assert feed(policy, *[0.6] * 12, ready=10, begin=6)[-1] == 1


def test_knative_by_concurrency_sees_what_waits() -> None:
    view = ScalingView(0.0, 0.0, 80.0, 7.0, 10, 0)
    assert Knative(SETTING).size(view).num_serving == 1
    assert Knative(SETTING, by_concurrency=True).size(view).num_serving == 10


def test_apa_doubles_what_is_still_starting() -> None:
    policy = AibrixApa(SETTING)
    assert feed(policy, 4.0, ready=1) == [2]
    assert feed(policy, 4.0, ready=1, pending=1) == [4]
    assert feed(policy, 4.0, ready=1, pending=3) == [8]


def test_apa_tolerates_a_little() -> None:
    assert feed(AibrixApa(SETTING), 8.5, ready=10) == [10]
    assert feed(AibrixApa(SETTING), 7.0, ready=10) == [10]
    assert feed(AibrixApa(SETTING), 4.0, ready=10) == [5]


def test_dynamo_holds_while_a_replica_starts() -> None:
    policy = DynamoPlanner(SETTING)
    assert feed(policy, *[5.0] * 18, ready=1, pending=1) == [2] * 18
    assert feed(policy, 5.0, ready=2) == [5]


def test_dynamo_adds_one_when_targets_are_missed_and_takes_one_with_slack() -> None:
    assert feed(DynamoPlanner(SETTING), 3.5, ready=3) == [4]
    assert feed(DynamoPlanner(SETTING), 1.5, ready=3) == [2]
    assert feed(DynamoPlanner(SETTING), 1.9, ready=3) == [3]


def test_kalman_follows_a_trend() -> None:
    kalman = Kalman()
    for value in range(0, 200, 10):
        kalman.observe(value)
    assert kalman.next() == pytest.approx(200, abs=8)


def test_keda_goes_up_at_once_and_down_after_five_minutes() -> None:
    policy = Keda(SETTING)
    assert feed(policy, 8.0, ready=4) == [8]
    down = feed(policy, *[1.0] * 60, ready=8)
    assert down[20] == 8
    assert down[-1] == 2


def test_static_peak_keeps_the_first_days_busiest_ten_minutes() -> None:
    policy = StaticPeak(SETTING)
    assert feed(policy, *[3.0] * 60, 9.0)[-1] == 4
    late = feed(policy, *[50.0] * 100, begin=9000)
    assert late[-1] == 4


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_lives_through_a_night_without_requests(name: str) -> None:
    policy = create_scaling_policy(name, SETTING)
    wanted = feed(policy, 2.0, *[0.0] * 100, ready=2)
    assert all(number >= 1 for number in wanted)


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(FleetSpecError, match="choose one of headwater, static_peak"):
        create_scaling_policy("best", SETTING)


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica_rps": 0.0},
        {"lead_s": -1.0},
        {"tick_s": 0.0},
        {"wake_s": float("nan")},
        {"parked_cost": 2.0},
        {"max_replicas": 0},
    ],
)
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(FleetSpecError):
        ScalingSetting(**{"replica_rps": 4.0, "lead_s": 30.0, **wrong})  # type: ignore[arg-type]
