"""Dollars per hour, worked out by hand from prices chosen for it."""

import math
from typing import Any

import pytest

from deployments.aws.launch_config import Market
from deployments.cost.bill import NodeCount, Scene, fixed_rows, planned_nodes, scene
from deployments.cost.cluster_plan import ClusterPlan, cluster_plan
from deployments.cost.errors import ClusterFileUnfit, CountUnfit, PriceMissing
from deployments.cost.price_table import PriceTable, UsdRange, price_table

CLUSTER: dict[str, Any] = {
    "name": "river",
    "region": "us-east-1",
    "zones": ["us-east-1a", "us-east-1b", "us-east-1c"],
    "head": {"instance_types": ["m7i.2xlarge"], "memory_db": True},
    "pools": {
        "h100": {
            "instance_types": ["p5.48xlarge"],
            "min_nodes": 1,
            "max_nodes": 4,
            "num_devices": 8,
            "markets": [{"market": "spot"}, {"market": "on-demand"}],
        },
        "cpu": {
            "instance_types": ["m7i.2xlarge"],
            "min_nodes": 0,
            "max_nodes": 2,
            "num_devices": 0,
            "markets": [{"market": "on-demand"}],
        },
    },
}
PRICES: dict[str, Any] = {
    "date": "2026-08-06",
    "region": "us-east-1",
    "instances": {
        "p5.48xlarge": {"on_demand_usd": 50.0, "source": "a test"},
        "m7i.2xlarge": {"on_demand_usd": 0.5, "source": "a test"},
    },
    "spot": {"low_share": 0.2, "typical_share": 0.4, "high_share": 0.8, "source": "a test"},
    "fixed": {
        "nat_gateway": {"usd": 0.05, "source": "a test"},
        "interface_endpoint": {"usd": 0.01, "source": "a test"},
        "load_balancer": {"usd": 0.02, "source": "a test"},
    },
    "serviceable": {"p5.48xlarge": {"tokens_per_s": 1000, "source": "a test"}},
}


@pytest.fixture
def plan() -> ClusterPlan:
    return cluster_plan(CLUSTER, "a test")


@pytest.fixture
def prices() -> PriceTable:
    return price_table([PRICES], ["a test"])


def scene_of(plan: ClusterPlan, prices: PriceTable, served: float | None = None) -> Scene:
    nodes = planned_nodes(plan, {"h100": 4, "cpu": 2})
    return scene("now", plan, nodes, prices, served_tokens_per_s=served)


def test_fixed_parts_each_have_their_row(plan: ClusterPlan, prices: PriceTable) -> None:
    rows = {row.name: (row.count, row.usd_per_hour) for row in fixed_rows(plan, prices)}
    assert rows == {
        "head": (1, 0.5),
        "nat_gateway": (3, pytest.approx(0.15)),
        "interface_endpoint": (36, pytest.approx(0.36)),
        "load_balancer": (1, 0.02),
        "memory_db_node": (3, None),
    }


def test_one_gateway_serves_all_zones_where_the_environment_says_so(prices: PriceTable) -> None:
    plan = cluster_plan({**CLUSTER, "nat_per_zone": False}, "a test")
    assert [row.count for row in fixed_rows(plan, prices)][1] == 1


def test_planned_nodes_cost_from_the_cheapest_to_the_dearest_market(
    plan: ClusterPlan, prices: PriceTable
) -> None:
    h100, cpu = scene_of(plan, prices).workers
    # Spot is tried first, 0.2 to 0.8 of 50; on demand is the dearest.
    assert h100.usd_per_hour == UsdRange(40.0, 80.0, 200.0)
    assert cpu.usd_per_hour == UsdRange(1.0, 1.0, 1.0)


def test_running_nodes_cost_what_their_own_market_does(
    plan: ClusterPlan, prices: PriceTable
) -> None:
    nodes = [
        NodeCount("h100", Market.ON_DEMAND, "p5.48xlarge", 1, running=True),
        NodeCount("h100", Market.SPOT, "p5.48xlarge", 2, running=True),
    ]
    assert scene("now", plan, nodes, prices).workers_usd_per_hour == UsdRange(70.0, 90.0, 130.0)


def test_utilization_and_what_it_means(plan: ClusterPlan, prices: PriceTable) -> None:
    found = scene_of(plan, prices, served=1000.0)
    assert found.serviceable_tokens_per_s == 4000.0
    assert found.utilization == 0.25
    assert found.idle_share == 0.75
    # 81 dollars of workers serve at 25 %; at 26 % the same takes 25/26 of them.
    assert found.usd_saved_per_point == pytest.approx(81.0 / 26.0)
    # 81 + 0.5 + 0.15 + 0.36 + 0.02 dollars buy 3.6 million tokens.
    assert found.usd_per_million_tokens == pytest.approx(82.03 / 3.6)


def test_a_full_fleet_has_no_point_to_gain_and_no_idle_share(
    plan: ClusterPlan, prices: PriceTable
) -> None:
    found = scene_of(plan, prices, served=4400.0)
    assert found.utilization == pytest.approx(1.1)
    assert found.idle_share == 0.0
    assert found.usd_saved_per_point is None


def test_nothing_served_has_no_price_per_token(plan: ClusterPlan, prices: PriceTable) -> None:
    assert scene_of(plan, prices, served=0.0).usd_per_million_tokens is None
    assert scene_of(plan, prices, served=0.0).idle_share == 1.0


def test_a_pool_without_a_rate_leaves_utilization_unknown(plan: ClusterPlan) -> None:
    prices = price_table([{**PRICES, "serviceable": {}}], ["a test"])
    assert scene_of(plan, prices, served=1000.0).utilization is None


def test_a_rate_that_is_given_goes_before_the_tables(plan: ClusterPlan, prices: PriceTable) -> None:
    nodes = planned_nodes(plan, {"h100": 2})
    found = scene(
        "now", plan, nodes, prices, served_tokens_per_s=100.0, node_tokens_per_s={"h100": 200.0}
    )
    assert found.utilization == 0.25


def test_a_type_without_a_price_is_told_with_what_to_do(prices: PriceTable) -> None:
    plan = cluster_plan({**CLUSTER, "head": {"instance_types": ["m9z.large"]}}, "a test")
    with pytest.raises(PriceMissing, match=r"no price of m9z\.large: put .* --prices"):
        fixed_rows(plan, prices)


def test_a_capacity_block_needs_the_price_that_was_paid(prices: PriceTable) -> None:
    with pytest.raises(PriceMissing, match=r"capacity block of p5\.48xlarge"):
        prices.node_usd("p5.48xlarge", Market.CAPACITY_BLOCK)


def test_an_unknown_pool_is_told_with_those_that_are(plan: ClusterPlan) -> None:
    with pytest.raises(CountUnfit, match="no pool 'b200': the cluster has h100, cpu"):
        planned_nodes(plan, {"b200": 1})


def test_fewer_than_no_nodes_are_refused(plan: ClusterPlan) -> None:
    with pytest.raises(CountUnfit, match="h100=-1"):
        planned_nodes(plan, {"h100": -1})


@pytest.mark.parametrize("served", [math.nan, math.inf, -1.0])
def test_tokens_that_are_no_number_are_refused(
    plan: ClusterPlan, prices: PriceTable, served: float
) -> None:
    with pytest.raises(CountUnfit, match="served tokens/s"):
        scene_of(plan, prices, served=served)


def test_a_pool_whose_most_is_below_its_least_is_refused() -> None:
    pool = {**CLUSTER["pools"]["h100"], "max_nodes": 0}
    with pytest.raises(ClusterFileUnfit, match="max_nodes 0 is below min_nodes 1"):
        cluster_plan({**CLUSTER, "pools": {"h100": pool}}, "a test")
