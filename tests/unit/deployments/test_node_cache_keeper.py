"""An engine replica's watch over its node's cache."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from app.fleet_metrics import ScrapeTarget
from cache_tiers.config import NodeCacheConfig
from cache_tiers.messages import PeerAddress
from deployments.node_cache import NodeCachePlace
from deployments.node_cache_keeper import NodeCacheKeeper
from deployments.weights_host import WeightsLease

PLACE = NodeCachePlace(
    Path("/tmp/x/cache.sock"),
    PeerAddress("10.0.0.7", 4711, b"secret"),
    ScrapeTarget("node/a", "node_cache", "10.0.0.7", 9001),
)


class Nodes:
    """Makes caches; those made while ``fault`` is set fail."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.leases: list[WeightsLease | None] = []
        self.find = self

    async def ensure(self, config: NodeCacheConfig, node_id: str) -> Any:
        self.asked.put_nowait(node_id)
        if self.fault is not None:
            raise self.fault
        return self

    async def remote(self, config: NodeCacheConfig, lease: WeightsLease | None) -> NodeCachePlace:
        self.leases.append(lease)
        return PLACE


async def test_a_replica_learns_where_its_nodes_cache_is() -> None:
    keeper = NodeCacheKeeper(NodeCacheConfig(), "a", ensure=Nodes().ensure)
    assert await keeper.start() == PLACE
    await keeper.close()


async def test_without_a_cache_the_replica_goes_on_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = Nodes()
    nodes.fault = OSError("a long account\nhost_bytes is more than is free: lower it")
    keeper = NodeCacheKeeper(NodeCacheConfig(), "a", ensure=nodes.ensure)
    assert await keeper.start() is None
    assert "computed again instead of loaded: host_bytes is more than is free" in caplog.text
    assert "a long account" not in caplog.text
    await keeper.close()


async def test_a_cache_that_could_not_be_made_at_the_start_is_made_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "ray.serve")
    nodes = Nodes()
    nodes.fault = TimeoutError()
    keeper = NodeCacheKeeper(NodeCacheConfig(), "a", ensure=nodes.ensure, period_s=0.001)
    assert await keeper.start() is None
    await _until_asked(nodes, 3)
    nodes.fault = None
    await _until_asked(nodes, 2)
    await keeper.close()
    assert "lost its cache" not in caplog.text
    assert caplog.text.count("node a has its cache now") == 1


async def test_a_lost_cache_is_made_again_and_its_loss_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = Nodes()
    keeper = NodeCacheKeeper(NodeCacheConfig(), "a", ensure=nodes.ensure, period_s=0.001)
    await keeper.start()
    nodes.fault = OSError("its process is gone")
    await _until_asked(nodes, 5)
    nodes.fault = None
    await _until_asked(nodes, 10)
    await keeper.close()
    assert caplog.text.count("lost its cache: its process is gone") == 1


async def test_a_cache_that_can_not_be_made_is_tried_ever_more_rarely() -> None:
    nodes = Nodes()
    keeper = NodeCacheKeeper(NodeCacheConfig(), "a", ensure=nodes.ensure, period_s=0.01)
    await keeper.start()
    nodes.fault = OSError("host_bytes is more than is free: lower it")
    started_s = time.monotonic()
    await _until_asked(nodes, 5)
    assert time.monotonic() - started_s >= 0.1
    await keeper.close()


async def test_a_lease_is_renewed_while_it_stands() -> None:
    nodes, lease = Nodes(), WeightsLease("m", "m/1", 15.0)
    keeper = NodeCacheKeeper(NodeCacheConfig(), "a", ensure=nodes.ensure, period_s=0.001)
    await keeper.start()
    keeper.lease = lease
    await _until_asked(nodes, 4)
    keeper.lease = None
    await _until_asked(nodes, 4)
    await keeper.close()
    assert nodes.leases[0] is None
    assert nodes.leases.count(lease) >= 3
    assert nodes.leases[-1] is None


async def test_a_lost_cache_has_no_handle() -> None:
    nodes = Nodes()
    keeper = NodeCacheKeeper(NodeCacheConfig(), "a", ensure=nodes.ensure, period_s=0.001)
    await keeper.start()
    handles = [keeper.actor]
    nodes.fault = OSError("its process is gone")
    await _until_asked(nodes, 2)
    assert [*handles, keeper.actor] == [nodes, None]
    await keeper.close()


async def _until_asked(nodes: Nodes, num_times: int) -> None:
    async with asyncio.timeout(5):
        for _ in range(nodes.asked.qsize() + num_times):
            await nodes.asked.get()
