"""Four nodes that want the same weights at once, each behind a link of the same bandwidth, as the
object store is: how much longer it takes than for one node alone.

Each node is told of the ones before it, nearest first, as the plan does. Needs root, for the links.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cache_tiers_pairs import Pairs, single
from benchmarks.cold_start_links import LinkedHost, linked_hosts
from benchmarks.cold_start_model import SOURCE, Shape, num_bytes_of, write_checkpoint
from benchmarks.cold_start_node import NodeLayout, WeightsNode, running_node, source_environment
from benchmarks.object_store import object_store
from benchmarks.result import CaseResult
from cache_tiers.config import WeightsConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import WeightsOrder

NUM_NODES = 4
MOST_TIMES = 1.3
"""Of the time of one node: the promise."""
_TIMEOUT_S = 300.0
_KILLED = 1
"""The second node of the chain dies; the third and the fourth have only the first, then."""
_KILLED_AT = 0.5
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Broadcast:
    """What is loaded, over what."""

    shape: Shape
    bits_per_s: int
    num_pairs: int


FULL = Broadcast(Shape(2048, 8192, num_layers=12, vocab=32_000, num_shards=4), 800_000_000, 5)
SHORT = Broadcast(Shape(512, 2048, num_layers=3, vocab=8192, num_shards=3), 100_000_000, 1)


def measure_broadcast(broadcast: Broadcast, scratch: Path) -> list[CaseResult]:
    """Raises ``OSError`` where links can't be made."""
    model = scratch / "broadcast"
    manifest = write_checkpoint(model, broadcast.shape)
    num_bytes = num_bytes_of(manifest)
    with ExitStack() as stack:
        store, *hosts = stack.enter_context(linked_hosts(NUM_NODES + 1, broadcast.bits_per_s))
        url = stack.enter_context(object_store(model, host=store.address, run_by=store.run_by))
        loads = Loads(hosts, url, num_bytes, manifest.weights_sha256, scratch)
        pairs = Pairs()
        for _ in range(broadcast.num_pairs):
            pairs.add(loads.all_s, loads.one_s)
        killed_s = [loads.all_s(is_one_killed=True) for _ in range(min(3, broadcast.num_pairs))]
        alone_s = loads.all_s(are_told=False)
    one_s = statistics.median(pairs.theirs)
    times = [all_s / one_s for all_s, one_s in zip(pairs.ours, pairs.theirs, strict=True)]
    floor_s = num_bytes * 8 / broadcast.bits_per_s
    unit = "times one node"
    return [
        single("broadcast_one_node", pairs.theirs, "s", floor_s),
        single("broadcast_four_nodes", pairs.ours, "s", floor_s),
        single("broadcast_four_nodes_over_one", times, unit, MOST_TIMES),
        single("broadcast_one_of_four_killed_over_one", [s / one_s for s in killed_s], unit),
        single("broadcast_four_nodes_from_the_source_over_one", [alone_s / one_s], unit),
    ]


class Loads:
    """Nodes that begin with nothing, each time."""

    def __init__(
        self, hosts: Sequence[LinkedHost], url: str, num_bytes: int, weights_sha256: str, to: Path
    ) -> None:
        self._hosts = hosts
        self._environment = source_environment(url)
        self._weights_sha256 = weights_sha256
        self._num_bytes = num_bytes
        self._scratch = to

    def one_s(self) -> float:
        return self._load_s(self._hosts[:1])

    def all_s(self, *, are_told: bool = True, is_one_killed: bool = False) -> float:
        """``are_told`` of each other; the time of those that live."""
        return self._load_s(self._hosts, are_told=are_told, is_one_killed=is_one_killed)

    def _load_s(
        self,
        hosts: Sequence[LinkedHost],
        *,
        are_told: bool = True,
        is_one_killed: bool = False,
    ) -> float:
        with ExitStack() as stack:
            nodes = [stack.enter_context(self._node(host)) for host in hosts]
            orders = []
            for index in range(len(nodes)):
                before = [node.address for node in reversed(nodes[:index])] if are_told else []
                orders.append(self._order(tuple(before)))
            started_s = time.perf_counter()
            for node, order in zip(nodes, orders, strict=True):
                node.order(order)
            waiting = list(zip(nodes, orders, strict=True))
            if is_one_killed:
                victim, order = waiting.pop(_KILLED)
                self._kill_half_way(victim, order)
            for node, order in waiting:
                node.reach(order, _TIMEOUT_S)
            return time.perf_counter() - started_s

    def _kill_half_way(self, node: WeightsNode, order: WeightsOrder) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline_s:
            if node.order(order).num_done_bytes >= _KILLED_AT * self._num_bytes:
                break
            time.sleep(_POLL_S)
        node.kill()

    def _node(self, host: LinkedHost) -> AbstractContextManager[WeightsNode]:
        layout = NodeLayout(Path(tempfile.mkdtemp(dir=self._scratch)))
        config = WeightsConfig(host_bytes=2 * self._num_bytes, keep_on_disk=False)
        return running_node(
            config,
            layout,
            host=host.address,
            environment=self._environment,
            run_by=host.run_by,
        )

    def _order(self, parents: tuple[PeerAddress, ...]) -> WeightsOrder:
        return WeightsOrder(
            model="broadcast",
            source=SOURCE,
            rung=Rung.STAGED,
            weights_sha256=self._weights_sha256,
            parents=parents,
        )
