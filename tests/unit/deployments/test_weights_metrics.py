"""The series of a node's weights."""

from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.chunk_server import ChunkServerStats
from cache_tiers.weights.messages import NodeWeightsReport, Stage, WeightsState
from deployments.node_cache_metrics import NodeCacheMetrics
from deployments.weights_metrics import collect_weights
from engine.weights.weights_counts import WeightsCounts
from tests.unit.deployments.test_node_cache_metrics import Stats, Store

THERE = WeightsState(
    "alpha",
    Rung.STAGED,
    Rung.STAGED,
    num_bytes=80,
    stages=(Stage("read", 1.5, 80), Stage("hash", 0.25), Stage("read", 0.5, 1)),
    num_leases=2,
)
COMING = WeightsState("beta", Rung.ON_DISK, Rung.STAGED, num_bytes=80, num_done_bytes=20)
UNKNOWN = WeightsState("gamma", Rung.COLD, Rung.STAGED)


def page() -> list[str]:
    report = NodeWeightsReport(
        PeerAddress("10.0.0.7", 7000, b"secret"), 100, 80, (THERE, COMING, UNKNOWN)
    )
    counts = WeightsCounts()
    counts.num_promoted_bytes.update(source=80, peer=160)
    counts.num_promotions["STAGED", "source"] = 1
    counts.num_failures["WrongWeights"] = 3
    counts.peers.num_corrupt = 4
    counts.num_failed_origins["peer"] = 6
    counts.num_evicted = 5
    lent = ChunkServerStats(num_sent_bytes=320)
    stats = Stats(Store(0, 0, {}))
    metrics = NodeCacheMetrics(
        lambda: stats,  # type: ignore[arg-type,return-value]
        lambda: collect_weights(report, counts, lent),
    )
    return metrics.render().decode().splitlines()


def test_memory_and_how_each_model_stands() -> None:
    lines = page()
    for line in (
        'headwater:weights_bytes{state="used"} 80.0',
        'headwater:weights_bytes{state="free"} 20.0',
        'headwater:weights_rung{model_name="alpha"} 2.0',
        'headwater:weights_rung{model_name="beta"} 1.0',
        'headwater:weights_rung_wanted{model_name="beta"} 2.0',
        'headwater:weights_leases{model_name="alpha"} 2.0',
        'headwater:weights_progress_ratio{model_name="alpha"} 1.0',
        'headwater:weights_progress_ratio{model_name="beta"} 0.25',
        'headwater:weights_progress_ratio{model_name="gamma"} 0.0',
        'headwater:weights_stage_seconds{model_name="alpha",stage="read"} 2.0',
        'headwater:weights_stage_seconds{model_name="alpha",stage="hash"} 0.25',
    ):
        assert line in lines


def test_what_was_brought_from_where_and_what_went_wrong() -> None:
    lines = page()
    for line in (
        'headwater:weights_brought_bytes_total{origin="source"} 80.0',
        'headwater:weights_brought_bytes_total{origin="peer"} 160.0',
        'headwater:weights_promotions_total{origin="source",rung="staged"} 1.0',
        'headwater:weights_failures_total{kind="WrongWeights"} 3.0',
        'headwater:weights_peer_faults_total{kind="corrupt"} 4.0',
        'headwater:weights_failed_origins_total{origin="peer"} 6.0',
        "headwater:weights_evicted_total 5.0",
        "headwater:weights_lent_bytes_total 320.0",
    ):
        assert line in lines
