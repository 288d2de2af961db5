"""The arithmetic: rows of dollars per hour, and what they mean by the token. Pure.

Utilization is served over serviceable tokens. A point more of it serves the same with fewer nodes:
workers cost ``W`` at utilization ``u``, so ``W (1 - u / (u + 0.01))`` is saved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from deployments.aws.launch_config import Market
from deployments.cost.cluster_plan import NUM_INTERFACE_ENDPOINTS, ClusterPlan, PoolPlan
from deployments.cost.errors import CountUnfit
from deployments.cost.price_table import PriceTable, UsdRange

POINT = 0.01
_NOTHING = UsdRange(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class NodeCount:
    """So many alike nodes."""

    pool: str
    market: Market
    instance_type: str
    num_nodes: int
    running: bool = False
    """Then market and type are what they are, else what is tried first."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    nodes: NodeCount
    usd_per_hour: UsdRange
    tokens_per_s: float | None
    """Serviceable; None where no table says it."""


@dataclass(frozen=True, slots=True)
class FixedRow:
    name: str
    count: int
    usd_per_hour: float | None
    """None: no price, so it isn't in the sum."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One choice of nodes, and what it comes to."""

    name: str
    workers: tuple[WorkerRow, ...]
    fixed_usd_per_hour: float
    served_tokens_per_s: float | None

    @property
    def workers_usd_per_hour(self) -> UsdRange:
        total = _NOTHING
        for row in self.workers:
            total = total.plus(row.usd_per_hour)
        return total

    @property
    def usd_per_hour(self) -> UsdRange:
        fixed = self.fixed_usd_per_hour
        return self.workers_usd_per_hour.plus(UsdRange(fixed, fixed, fixed))

    @property
    def serviceable_tokens_per_s(self) -> float | None:
        """None where some pool with nodes doesn't say."""
        total = 0.0
        for row in self.workers:
            if row.nodes.num_nodes:
                if row.tokens_per_s is None:
                    return None
                total += row.tokens_per_s
        return total

    @property
    def utilization(self) -> float | None:
        """Above 1: more was served than the arithmetic thinks possible."""
        serviceable = self.serviceable_tokens_per_s
        if self.served_tokens_per_s is None or not serviceable:
            return None
        return self.served_tokens_per_s / serviceable

    @property
    def idle_share(self) -> float | None:
        """Of what the workers cost."""
        return None if self.utilization is None else max(0.0, 1.0 - self.utilization)

    @property
    def usd_saved_per_point(self) -> float | None:
        """Per hour; None where there's no point left to gain."""
        share = self.utilization
        if share is None or share + POINT > 1.0:
            return None
        return self.workers_usd_per_hour.typical * (1.0 - share / (share + POINT))

    @property
    def usd_per_million_tokens(self) -> float | None:
        if not self.served_tokens_per_s:
            return None
        return self.usd_per_hour.typical / (self.served_tokens_per_s * 3600.0) * 1e6


def planned_nodes(plan: ClusterPlan, counts: Mapping[str, int]) -> list[NodeCount]:
    """Of each pool's first market and type; pools that ``counts`` lacks have none.

    Raises `CountUnfit` for a pool that isn't there and for a negative number.
    """
    for pool, count in counts.items():
        _known(plan, pool)
        if count < 0:
            raise CountUnfit(f"{pool}={count}: a pool can't have fewer than 0 nodes")
    return [
        NodeCount(name, pool.markets[0].market, pool.type_of(pool.markets[0]), counts.get(name, 0))
        for name, pool in plan.pools.items()
    ]


def scene(
    name: str,
    plan: ClusterPlan,
    nodes: Sequence[NodeCount],
    prices: PriceTable,
    *,
    served_tokens_per_s: float | None = None,
    node_tokens_per_s: Mapping[str, float] | None = None,
) -> Scene:
    """``node_tokens_per_s``: by pool, before the table's.

    Raises `PriceMissing` and `CountUnfit`.
    """
    _check_rate("served tokens/s", served_tokens_per_s)
    given = node_tokens_per_s or {}
    for pool, rate in given.items():
        _known(plan, pool)
        _check_rate(f"tokens/s of a node of {pool}", rate)
    rows = tuple(_worker_row(plan, count, prices, given) for count in nodes)
    fixed = sum(row.usd_per_hour or 0.0 for row in fixed_rows(plan, prices))
    return Scene(name, rows, fixed, served_tokens_per_s)


def pool_usd(pool: PoolPlan, prices: PriceTable) -> UsdRange:
    """Of one node: typical in the market tried first, from the cheapest to the dearest of all.

    Raises `PriceMissing`.
    """
    ranges = [prices.node_usd(pool.type_of(each), each.market) for each in pool.markets]
    low, high = min(each.low for each in ranges), max(each.high for each in ranges)
    return UsdRange(low, ranges[0].typical, high)


def fixed_rows(plan: ClusterPlan, prices: PriceTable) -> list[FixedRow]:
    """What runs without a worker. Raises `PriceMissing` for the head's type."""
    endpoints = NUM_INTERFACE_ENDPOINTS * len(plan.zones)
    rows = [
        FixedRow("head", 1, prices.on_demand_usd(plan.head.instance_types[0])),
        _fixed_row("nat_gateway", plan.num_nat_gateways, prices),
        _fixed_row("interface_endpoint", endpoints, prices),
        _fixed_row("load_balancer", 1, prices),
    ]
    if plan.head.memory_db:
        rows.append(_fixed_row("memory_db_node", len(plan.zones), prices))
    return rows


def _fixed_row(name: str, count: int, prices: PriceTable) -> FixedRow:
    price = prices.fixed.get(name)
    return FixedRow(name, count, None if price is None else count * price.usd)


def _worker_row(
    plan: ClusterPlan, count: NodeCount, prices: PriceTable, given: Mapping[str, float]
) -> WorkerRow:
    pool = _known(plan, count.pool)
    if count.running:
        usd = prices.node_usd(count.instance_type, count.market)
    else:
        usd = pool_usd(pool, prices)
    rate: float | None = given.get(count.pool)
    if rate is None and count.instance_type in prices.serviceable:
        rate = prices.serviceable[count.instance_type].tokens_per_s
    if pool.num_devices == 0:
        rate = 0.0
    tokens = None if rate is None else rate * count.num_nodes
    return WorkerRow(count, usd.times(count.num_nodes), tokens)


def _known(plan: ClusterPlan, pool: str) -> PoolPlan:
    found = plan.pools.get(pool)
    if found is None:
        raise CountUnfit(f"there is no pool {pool!r}: the cluster has {', '.join(plan.pools)}")
    return found


def _check_rate(what: str, rate: float | None) -> None:
    if rate is not None and not (isfinite(rate) and rate >= 0.0):
        raise CountUnfit(f"{what} must be a number of 0 or more, not {rate}")


def unpriced_types(plan: ClusterPlan, prices: PriceTable) -> list[str]:
    """Alternatives of pools that no row had to price."""
    types = {each for pool in plan.pools.values() for each in pool.instance_types}
    return sorted(types - prices.instances.keys())
