"""A model's sizes in one line, for a log and a human. Pure."""

from collections.abc import Sequence

from autoscaler.draft import Draft
from autoscaler.lower_rungs import NodePlan
from autoscaler.model_view import ModelView, Sight
from autoscaler.plan import ForecastRecord


def explain_sizes(
    draft: Draft, sight: Sight, view: ModelView, num_before: int, about_nodes: Sequence[str]
) -> str:
    """``num_before``: replicas, asleep ones included, until now."""
    parts = [f"{draft.num_serving} serve"]
    if draft.num_parked:
        parts[0] += f" + {draft.num_parked} asleep"
    if draft.num_total != num_before:
        parts[0] += f" (were {num_before})"
    parts[0] += f" by {draft.causes[0]}"
    parts.extend(_forecast(each) for each in draft.forecasts)
    rate = view.corrected_rate(max(1, draft.num_serving))
    if rate is not None and sight.load is not None:
        parts.append(f"load {sight.load:.3g} at {rate:.3g} requests/s each")
    factor = view.correction.factor
    if abs(factor - 1) > 0.05:
        parts.append(f"of what their steps promise they serve {factor:.2f}")
    if sight.backlog_replica_s >= 0.1:
        parts.append(f"{sight.backlog_replica_s:.3g} replica-seconds wait")
    num_starting = len(view.starts.under_way)
    if num_starting:
        parts.append(f"{num_starting} start")
    return "; ".join([*parts, *about_nodes, *draft.notes, *sight.faults])


def explain_nodes(nodes: NodePlan, sight: Sight, num_total: int) -> list[str]:
    """Where weights stand beside ``num_total`` replicas, as far as that is known."""
    parts = []
    warm = sight.warm
    if nodes.num_staged or warm.num_staged:
        parts.append(f"weights in memory for {nodes.num_staged} more (are for {warm.num_staged})")
    if warm.num_on_disk:
        parts.append(f"on disks for {warm.num_on_disk}")
    if nodes.num_nodes > num_total + nodes.num_staged:
        parts.append(f"nodes for {nodes.num_nodes} are asked for ahead")
    if warm != sight.lead_warm:
        parts.append("most replicas begin on colder nodes than these, so nobody counts on them")
    if sight.num_nodes_failed:
        parts.append(f"{sight.num_nodes_failed} nodes cannot hold the weights")
    return parts


def _forecast(record: ForecastRecord) -> str:
    return f"{record.value:.3g} expected in {record.horizon_s:.0f} s at {record.quantile:.3f}"
