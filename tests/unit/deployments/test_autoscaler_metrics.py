"""The autoscaler's page: what is there, what is wanted, what is expected."""

from dataclasses import dataclass

from app.exposition import Page, merge_pages
from autoscaler.observation import Demand, FleetObservation, ModelObservation, ReplicaObservation
from autoscaler.plan import Cause, ForecastRecord, ModelPlan, Plan, PromotionLead
from cache_tiers.rung import Rung
from deployments.autoscaler_metrics import AutoscalerMetrics
from engine.messages import LoadView


@dataclass
class Rounds:
    observation: FleetObservation | None = None
    plan: Plan | None = None
    is_config_refused: bool = False


def lines_of(rounds: Rounds) -> set[str]:
    page = AutoscalerMetrics(rounds).render().decode()
    return {line.removeprefix("headwater:autoscaler_") for line in page.splitlines()}


def test_before_the_first_round_the_page_has_no_model() -> None:
    assert not any("model_name" in line for line in lines_of(Rounds()))


def test_a_configuration_that_was_refused_is_seen() -> None:
    assert "config_refused 0.0" in lines_of(Rounds())
    assert "config_refused 1.0" in lines_of(Rounds(is_config_refused=True))


def test_replicas_are_counted_by_rung_and_unknown_demand_is_said() -> None:
    replicas = (
        ReplicaObservation("1", Rung.SERVING, load=LoadView()),
        ReplicaObservation("2", Rung.SERVING),
        ReplicaObservation("3", Rung.PARKED, load=LoadView()),
        ReplicaObservation("4", Rung.SERVING, is_draining=True, load=LoadView()),
    )
    models = (
        ModelObservation("m", Demand(1, 2, 3, 4, 5, 6, 7), replicas),
        ModelObservation("n", None),
    )
    lines = lines_of(Rounds(FleetObservation(0.0, 0.0, models)))
    assert 'replicas{model_name="m",rung="serving"} 2.0' in lines
    assert 'replicas{model_name="m",rung="parked"} 1.0' in lines
    assert 'silent_replicas{model_name="m"} 1.0' in lines
    assert 'demand_known{model_name="m"} 1.0' in lines
    assert 'demand_known{model_name="n"} 0.0' in lines


def test_what_nodes_hold_is_said_and_what_is_unknown_is_not() -> None:
    models = (
        ModelObservation(
            "m", None, num_nodes_staged=2, num_nodes_on_disk=0, num_nodes=5, num_nodes_failed=1
        ),
        ModelObservation("n", None),
    )
    lines = lines_of(Rounds(FleetObservation(0.0, 0.0, models)))
    assert {
        'warm_rooms{model_name="m",rung="staged"} 2.0',
        'warm_rooms{model_name="m",rung="on_disk"} 0.0',
        'node_rooms{model_name="m"} 5.0',
        'failed_nodes{model_name="m"} 1.0',
    } <= lines
    assert not any("rooms" in line and 'model_name="n"' in line for line in lines)


def test_leads_are_those_of_the_plan() -> None:
    leads = (PromotionLead(Rung.COLD, 30.0, ()), PromotionLead(Rung.STAGED, 3.0, (3.0,)))
    model = ModelPlan("m", 4, 2, 1, 1, {}, None, (), "", num_nodes=9, leads=leads, node_lead_s=90.0)
    assert {
        'promotion_seconds{model_name="m",rung="cold"} 30.0',
        'promotion_seconds{model_name="m",rung="staged"} 3.0',
        'wanted_node_rooms{model_name="m"} 9.0',
        'node_lead_seconds{model_name="m"} 90.0',
    } <= lines_of(Rounds(plan=Plan(0.0, 0.0, 1, 1, (model,))))


def test_sizes_reasons_and_forecasts_are_those_of_the_plan() -> None:
    forecasts = (
        ForecastRecord(120.0, 0.98, 4.5, 3.0, 0.2, 0.97),
        ForecastRecord(3.0, 0.98, 3.5, 3.0, 0.1, None),
    )
    causes = (Cause.BACKLOG, Cause.MAXIMUM)
    model = ModelPlan("m", 4, 2, 0, 1, {}, 20.0, causes, "", False, 4.6, forecasts)
    lines = lines_of(Rounds(plan=Plan(0.0, 0.0, 1, 1, (model,), num_devices=48)))
    assert {
        'wanted_replicas{model_name="m",rung="serving"} 4.0',
        'wanted_replicas{model_name="m",rung="parked"} 2.0',
        'wanted_exactly{model_name="m"} 4.6',
        'held{model_name="m"} 0.0',
        'cause{cause="backlog",model_name="m"} 1.0',
        'cause{cause="maximum",model_name="m"} 1.0',
        'next_ready_seconds{model_name="m"} 20.0',
        'lead_seconds{lead="0",model_name="m"} 3.0',
        'lead_seconds{lead="1",model_name="m"} 120.0',
        'forecast_replicas{lead="1",model_name="m"} 4.5',
        'forecast_coverage{lead="1",model_name="m"} 0.97',
        "devices 48.0",
        "dry_run 0.0",
    } <= lines
    assert not any(line.startswith('forecast_coverage{lead="0"') for line in lines)


def test_the_fleets_page_takes_it_in() -> None:
    rounds = Rounds(plan=Plan(0.0, 0.0, 1, 1, (), num_devices=8))
    page = AutoscalerMetrics(rounds).render().decode()
    merged = merge_pages([Page("gateway/x", "autoscaler", page)]).decode()
    assert 'headwater:autoscaler_devices{replica="gateway/x",role="autoscaler"} 8.0' in merged
