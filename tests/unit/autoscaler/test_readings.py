import math
from dataclasses import fields, replace

import pytest

from autoscaler.observation import Demand, ModelObservation, ServeObservation
from autoscaler.readings import clean
from engine.messages import LoadView
from tests.unit.autoscaler.fleets import make_demand, make_replica


def test_what_makes_sense_stays_as_it_is() -> None:
    observation = ModelObservation(
        "m", make_demand(3.0), (make_replica("a"),), ServeObservation(1, 1, 0, 4)
    )
    cleaned = clean(observation)
    assert cleaned.observation == observation
    assert cleaned.faults == ()


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0, 1e300])
@pytest.mark.parametrize("name", [each.name for each in fields(Demand) if "p95" not in each.name])
def test_demand_with_nonsense_in_it_is_unknown(name: str, nonsense: float) -> None:
    demand = replace(make_demand(3.0), **{name: nonsense})
    cleaned = clean(ModelObservation("m", demand))
    assert cleaned.observation.demand is None
    assert any(name in fault for fault in cleaned.faults)


def test_of_a_period_without_length_nothing_is_known() -> None:
    assert clean(ModelObservation("m", make_demand(0.0, period_s=0.0))).observation.demand is None


def test_a_length_that_is_no_number_is_unknown_alone() -> None:
    demand = replace(make_demand(3.0), prompt_len_p95=math.nan)
    cleaned = clean(ModelObservation("m", demand))
    assert cleaned.observation.demand == make_demand(3.0)
    assert len(cleaned.faults) == 1


@pytest.mark.parametrize(
    "load",
    [
        LoadView(decode_step_s=math.nan),
        LoadView(num_running=-1, num_waiting=2),
        LoadView(prefill_tokens_per_s=math.inf),
    ],
)
def test_a_replica_that_reports_nonsense_is_silent(load: LoadView) -> None:
    replica = make_replica("a", load=load, wake_s=math.nan)
    cleaned = clean(ModelObservation("m", None, (replica,)))
    assert cleaned.observation.replicas == (make_replica("a", load=None),)
    assert "a" in cleaned.faults[0]


def test_a_replica_counts_once() -> None:
    both = (make_replica("a"), make_replica("a", num_running=3))
    cleaned = clean(ModelObservation("m", None, both))
    assert cleaned.observation.replicas == (make_replica("a", num_running=3),)


def test_negative_counts_of_serve_are_unknown() -> None:
    cleaned = clean(ModelObservation("m", None, serve=ServeObservation(-1, 0, 0, 1)))
    assert cleaned.observation.serve is None
