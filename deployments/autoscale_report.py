"""What `headwater autoscale explain` says, as text: a line per decision, the last one in full, and
what nodes hold now."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

from autoscaler.plan import ForecastRecord, ModelPlan, PromotionLead
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import WeightsState
from deployments.plan_messages import Decided, NodeStanding

_SHORT = 12
"""Characters of a node's id."""


def render(
    models: Mapping[str, Sequence[Decided]],
    standings: Mapping[str, Sequence[NodeStanding]] = MappingProxyType({}),
) -> str:
    """Oldest decision first; times are UTC. ``standings``: of nodes, by model."""
    return "\n\n".join(
        "\n".join(_model(name, decided, standings.get(name, ())))
        for name, decided in models.items()
    )


def _model(
    name: str, decided: Sequence[Decided], standings: Sequence[NodeStanding]
) -> Iterator[str]:
    yield name
    yield from (f"  {_line(each)}" for each in decided)
    plan = decided[-1].plan
    yield f"  now: {_now(plan)}"
    yield from (f"    {line}" for forecast in plan.forecasts for line in _forecast(forecast))
    if plan.leads:
        yield f"    until it serves, from each rung: {', '.join(map(_lead, plan.leads))}"
    yield f"    {_nodes(plan)}"
    yield from (f"    {_standing(each)}" for each in standings)


def _line(decided: Decided) -> str:
    plan = decided.plan
    time = datetime.fromtimestamp(decided.made_local_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    spare = f" + {plan.num_parked} parked" if plan.num_parked else ""
    notes = [str(cause) for cause in plan.causes]
    if decided.is_dry_run:
        notes.append("dry run")
    elif plan.is_held:
        notes.append("held")
    return f"{time}  {plan.num_serving} serving{spare}  [{', '.join(notes)}]  {plan.reason}"


def _now(plan: ModelPlan) -> str:
    wanted = f"{plan.num_wanted:.2f} replicas are wanted before rounding and bounds"
    if plan.next_ready_s is None:
        return wanted
    return f"{wanted}, the next one serves in {plan.next_ready_s:.0f} s"


def _lead(lead: PromotionLead) -> str:
    known = f"{len(lead.times_s)} measured" if lead.times_s else "as configured"
    return f"{_name(lead.rung)} {lead.lead_s:.3g} s ({known})"


def _nodes(plan: ModelPlan) -> str:
    return (
        f"the next replica begins {_name(plan.start_rung)}; wanted beside replicas: weights in "
        f"memory for {plan.num_staged} more, on disks for {plan.num_on_disk}; nodes for "
        f"{plan.num_nodes} in all, each {plan.node_lead_s:.3g} s after it is asked for"
    )


def _standing(standing: NodeStanding) -> str:
    state = standing.state
    parts = [f"node {standing.node_id[:_SHORT]}: {_name(state.rung)}{_progress(state)}"]
    if state.num_leases:
        parts.append(f"in use by {state.num_leases}")
    parts.append(f"room for {standing.num_replicas} more")
    if state.failure:
        parts.append(state.failure)
    return ", ".join(parts)


def _progress(state: WeightsState) -> str:
    if state.wanted <= state.rung:
        return ""
    share = f", {state.num_done_bytes / state.num_bytes:.0%}" if state.num_bytes else ""
    return f" (to be {_name(state.wanted)}{share})"


def _name(rung: Rung) -> str:
    return rung.name.lower().replace("_", " ")


def _forecast(forecast: ForecastRecord) -> Iterator[str]:
    held = "" if forecast.coverage is None else f"; {forecast.coverage:.1%} of late ones held"
    yield (
        f"in {forecast.horizon_s:.0f} s at most {forecast.value:.2f} replicas' load with "
        f"probability {forecast.quantile:.3f} (now {forecast.last_value:.2f}, calibration "
        f"{forecast.calibration:+.2f}{held})"
    )
    experts = sorted(forecast.experts, key=lambda expert: -expert.weight)
    if experts:
        yield "  " + ", ".join(f"{e.name} {e.weight:.0%}: {e.value:.2f}" for e in experts)
