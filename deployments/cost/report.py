"""A cluster's cost as text for people and as JSON for scripts.

Computes nothing but what a row shows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from deployments.cost.bill import FixedRow, Scene, unpriced_types
from deployments.cost.cluster_plan import ClusterPlan
from deployments.cost.price_table import MAX_AGE_DAYS, PriceTable, UsdRange

_NAMES = {
    "head": "head",
    "nat_gateway": "NAT gateways",
    "interface_endpoint": "interface endpoints, one a zone",
    "load_balancer": "load balancer",
    "memory_db_node": "MemoryDB nodes",
}


@dataclass(frozen=True, slots=True)
class CostReport:
    plan: ClusterPlan
    prices: PriceTable
    today: date
    fixed: tuple[FixedRow, ...]
    scenes: tuple[Scene, ...]

    @property
    def warnings(self) -> list[str]:
        found = []
        age = self.prices.age_days(self.today)
        if age > MAX_AGE_DAYS:
            found.append(f"prices are of {self.prices.date}, {age} days old: check them")
        if self.prices.region != self.plan.region:
            found.append(
                f"prices are of {self.prices.region}, the cluster is in {self.plan.region}"
            )
        found += [
            f"no price of {_NAMES[row.name]}: the sums are without them"
            for row in self.fixed
            if row.usd_per_hour is None
        ]
        types = unpriced_types(self.plan, self.prices)
        if types:
            found.append(f"no price of {', '.join(types)}: nodes of these may cost more")
        return found

    def to_text(self) -> str:
        title = f"{self.plan.name} in {self.plan.region}, USD per hour, prices of "
        lines = [title + f"{self.prices.date}", "", "fixed"]
        for row in self.fixed:
            usd = "no price" if row.usd_per_hour is None else f"{row.usd_per_hour:.2f}"
            lines.append(f"  {row.count:>3} {_NAMES[row.name]:<34}{usd:>12}")
        for scene in self.scenes:
            lines += ["", *_scene_lines(scene)]
        lines += ["", "not counted: data moved, storage, volumes, capacity units, tax, discounts"]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "cluster": self.plan.name,
            "region": self.plan.region,
            "prices_of": self.prices.date.isoformat(),
            "fixed": [asdict(row) for row in self.fixed],
            "scenes": [_scene_json(scene) for scene in self.scenes],
            "warnings": self.warnings,
        }


def _scene_lines(scene: Scene) -> list[str]:
    lines = [f"{scene.name}"]
    for row in scene.workers:
        nodes = row.nodes
        what = f"{nodes.pool}, {nodes.instance_type}, {nodes.market}"
        lines.append(f"  {nodes.num_nodes:>3} {what:<34}{_usd(row.usd_per_hour)}")
    lines.append(f"  {'':>3} {'all, with what is fixed':<34}{_usd(scene.usd_per_hour)}")
    if scene.served_tokens_per_s is None:
        return lines
    return lines + [f"  {'':>3} {name:<34}{value:>12}" for name, value in _use(scene)]


def _use(scene: Scene) -> Sequence[tuple[str, str]]:
    serviceable = scene.serviceable_tokens_per_s
    return (
        ("serviceable tokens/s", _number(serviceable, ",.0f")),
        ("utilization", _number(scene.utilization, ".1%")),
        ("idle share of the workers' cost", _number(scene.idle_share, ".1%")),
        ("saved per point of utilization", _number(scene.usd_saved_per_point, ".2f")),
        ("per million output tokens", _number(scene.usd_per_million_tokens, ".2f")),
    )


def _scene_json(scene: Scene) -> dict[str, Any]:
    return {
        "name": scene.name,
        "workers": [
            {
                **asdict(row.nodes),
                "usd_per_hour": asdict(row.usd_per_hour),
                "serviceable_tokens_per_s": row.tokens_per_s,
            }
            for row in scene.workers
        ],
        "workers_usd_per_hour": asdict(scene.workers_usd_per_hour),
        "fixed_usd_per_hour": scene.fixed_usd_per_hour,
        "usd_per_hour": asdict(scene.usd_per_hour),
        "served_tokens_per_s": scene.served_tokens_per_s,
        "serviceable_tokens_per_s": scene.serviceable_tokens_per_s,
        "utilization": scene.utilization,
        "idle_share": scene.idle_share,
        "usd_saved_per_point": scene.usd_saved_per_point,
        "usd_per_million_tokens": scene.usd_per_million_tokens,
    }


def _usd(usd: UsdRange) -> str:
    text = f"{usd.typical:>12.2f}"
    return text if usd.low == usd.high else f"{text}  ({usd.low:.2f} to {usd.high:.2f})"


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)
