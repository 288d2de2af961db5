"""The node cache's page."""

from dataclasses import dataclass

from cache_tiers.tier import TierKind
from deployments.node_cache_metrics import NodeCacheMetrics


@dataclass
class Loads:
    num_loaded: int
    bytes_per_s: float


@dataclass
class Store:
    num_blocks: int
    num_evicted: int
    loads: dict[TierKind, Loads]


@dataclass
class Stats:
    store: Store
    disk: None = None


def test_counts_have_a_name_each_and_a_label_for_the_tier() -> None:
    loads = {TierKind.HOST: Loads(7, 2e9), TierKind.PEER: Loads(3, 1e9)}
    stats = Stats(Store(num_blocks=5, num_evicted=2, loads=loads))
    page = NodeCacheMetrics(lambda: stats).render().decode()  # type: ignore[arg-type,return-value]
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert lines == [
        "headwater:node_cache_store_blocks 5.0",
        "headwater:node_cache_store_evicted_total 2.0",
        'headwater:node_cache_store_loads_loaded_total{tier="host"} 7.0',
        'headwater:node_cache_store_loads_loaded_total{tier="peer"} 3.0',
        'headwater:node_cache_store_loads_bytes_per_s{tier="host"} 2e+09',
        'headwater:node_cache_store_loads_bytes_per_s{tier="peer"} 1e+09',
    ]
