"""Where a starting replica gets its weights from, and what it makes of a node's cache that can't
give any."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.fleet_metrics import ScrapeTarget
from cache_tiers.config import NodeCacheConfig, WeightsConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage, WeightsOrder, WeightsState
from deployments.config import ModelArgs
from deployments.node_cache import NodeCachePlace
from deployments.node_cache_keeper import LEASE_S, NodeCacheKeeper
from deployments.replica_weights import Brought, ReplicaWeights
from deployments.weights_host import Reached, WeightsLease
from engine.errors import CheckpointError

PLACE = NodeCachePlace(
    Path("/tmp/x/cache.sock"),
    PeerAddress("10.0.0.7", 4711, b"secret"),
    ScrapeTarget("node/a", "node_cache", "10.0.0.7", 9001),
)
COLD = WeightsState("m", Rung.COLD, Rung.COLD)
ON_DISK = WeightsState("m", Rung.ON_DISK, Rung.STAGED, "r", "/home/models/m", 7, origin="source")
STAGED = WeightsState("m", Rung.STAGED, Rung.STAGED, "r", "/n/m/r", 7, origin="source")
LEASE = WeightsLease("m", "m/1", LEASE_S)


class Method:
    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    async def remote(self, *arguments: Any) -> Any:
        return self._act(*arguments)


class NodeCache:
    """An actor's handle, whose weights come step by step: as ``reached`` says."""

    def __init__(self, *reached: Reached | Exception | None) -> None:
        self._reached = list(reached)
        self.orders: list[WeightsOrder] = []
        self.calls: list[tuple[Any, ...]] = []
        self.find = Method(self._find)
        self.reach_weights = Method(self._reach)
        self.release_weights = Method(lambda lease: self.calls.append(("release", lease)))
        self.record_start = Method(lambda *start: self.calls.append(("start", *start)))

    def _find(self, config: NodeCacheConfig, lease: WeightsLease | None) -> NodeCachePlace:
        self.calls.append(("find", lease))
        return PLACE

    def _reach(self, order: WeightsOrder, timeout_s: float, lease: WeightsLease) -> Reached | None:
        assert lease == LEASE
        self.orders.append(order)
        reached = self._reached.pop(0)
        if isinstance(reached, Exception):
            raise reached
        return reached


def args(source: Path | str = "/no/such/folder", *, host_bytes: int | None = 100) -> ModelArgs:
    weights = None if host_bytes is None else WeightsConfig(host_bytes=host_bytes)
    return ModelArgs(
        name="m",
        source=str(source),
        weights_sha256="a" * 64,
        node_cache=NodeCacheConfig(weights=weights),
    )


async def bring(
    cache: NodeCache | None, home: Path, model: ModelArgs
) -> tuple[Brought, ReplicaWeights]:
    async def ensure(config: NodeCacheConfig, node_id: str) -> Any:
        if cache is None:
            raise OSError("host_bytes is more than is free: lower it")
        return cache

    assert model.node_cache is not None
    keeper = NodeCacheKeeper(model.node_cache, "a", ensure=ensure)
    await keeper.start()
    await keeper.close()
    weights = ReplicaWeights(model, keeper, "m/1", home=home)
    return await weights.bring(), weights


async def test_a_replica_starts_from_what_its_node_holds(tmp_path: Path) -> None:
    cache = NodeCache(Reached(STAGED, STAGED))
    brought, _ = await bring(cache, tmp_path, args())
    assert brought == Brought(Path("/n/m/r"), Rung.STAGED)
    assert brought.stage == "find_weights"
    assert cache.orders == [
        WeightsOrder("m", "/no/such/folder", Rung.STAGED, weights_sha256="a" * 64)
    ]


async def test_it_waits_for_what_its_node_brings(tmp_path: Path) -> None:
    coming = WeightsState("m", Rung.COLD, Rung.STAGED, num_bytes=7, num_done_bytes=3)
    cache = NodeCache(Reached(COLD, coming), Reached(coming, STAGED))
    brought, _ = await bring(cache, tmp_path, args())
    assert brought == Brought(Path("/n/m/r"), Rung.COLD, origin="source", num_bytes=7)
    assert brought.stage == "from_source"


async def test_other_weights_under_the_same_name_are_none(tmp_path: Path) -> None:
    old = WeightsState("m", Rung.STAGED, Rung.STAGED, "old", "/n/m/old")
    brought, _ = await bring(NodeCache(Reached(old, STAGED)), tmp_path, args())
    assert brought.started_from is Rung.COLD


async def test_what_its_node_found_on_its_disk_was_there(tmp_path: Path) -> None:
    found = msgspec.structs.replace(STAGED, origin="disk")
    brought, _ = await bring(NodeCache(Reached(COLD, found)), tmp_path, args())
    assert brought == Brought(Path("/n/m/r"), Rung.ON_DISK, origin="disk", num_bytes=7)


async def test_without_memory_for_weights_the_disk_is_asked_for(tmp_path: Path) -> None:
    cache = NodeCache(Reached(ON_DISK, ON_DISK))
    brought, _ = await bring(cache, tmp_path, args(host_bytes=0))
    assert cache.orders[0].rung is Rung.ON_DISK
    assert brought.started_from is Rung.ON_DISK


async def test_what_is_on_disk_will_do_where_memory_is_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = WeightsState("m", Rung.ON_DISK, Rung.STAGED, "r", "/h/m", failure="no room: raise it")
    brought, _ = await bring(NodeCache(Reached(ON_DISK, short)), tmp_path, args())
    assert brought == Brought(Path("/h/m"), Rung.ON_DISK)
    assert "m starts from ON_DISK: no room: raise it" in caplog.text


FAILED = WeightsState("m", Rung.COLD, Rung.STAGED, failure="no such bucket")


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        (NodeCache(Reached(COLD, FAILED)), "no such bucket"),
        (NodeCache(Reached(COLD, COLD)), "nothing came for 60 s"),
        (NodeCache(None), "it runs without"),
        (NodeCache(OSError("a long account\nits process is gone")), "its process is gone"),
        (None, "it could not be started"),
    ],
)
async def test_where_its_node_can_not_give_them_it_pulls_them_itself(
    cache: NodeCache | None, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CheckpointError, match="/no/such/folder"):  # it tried
        await bring(cache, tmp_path, args())
    assert f"m/1: the node's cache has no weights for it, it brings them by itself: {why}" in (
        caplog.text
    )


async def test_a_model_without_the_section_asks_no_node(tmp_path: Path) -> None:
    cache = NodeCache()
    with pytest.raises(CheckpointError, match="/no/such/folder"):
        await bring(cache, tmp_path, args(host_bytes=None))
    assert cache.orders == []


async def test_a_replica_that_leaves_gives_its_lease_back_once(tmp_path: Path) -> None:
    cache = NodeCache(Reached(STAGED, STAGED))
    _, weights = await bring(cache, tmp_path, args())
    await weights.record_start([Stage("process", 0.5)])
    await weights.release()
    await weights.release()
    assert cache.calls == [
        ("find", None),
        ("start", "m", (Stage("process", 0.5),)),
        ("release", LEASE),
    ]
