"""What runs on a cluster, on what, and since when: one record, for people and for scripts. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deployments.aws.cluster_card import ClusterCard
from deployments.aws.cluster_nodes import ClusterNode, count_nodes
from deployments.aws.config_history import ConfigVersion
from deployments.aws.serve_state import RUNNING, ServeState

NUM_SHOWN_VERSIONS = 5


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    card: ClusterCard
    versions: Sequence[ConfigVersion]
    """Oldest first."""
    nodes: Sequence[ClusterNode]
    serve: ServeState | None
    """None where Serve couldn't be asked."""
    serve_fault: str | None
    """Why not."""

    @property
    def is_running(self) -> bool:
        """Something is deployed, and all of it runs."""
        if self.serve is None or not self.serve.applications:
            return False
        return all(each.status == RUNNING for each in self.serve.applications.values())

    @property
    def full_pools(self) -> list[str]:
        """Pools that may grow no further."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            counts[node.pool] = counts.get(node.pool, 0) + 1
        return [
            name
            for name, pool in self.card.pools.items()
            if pool.max_nodes and counts.get(name, 0) >= pool.max_nodes
        ]

    @property
    def num_waiting_replicas(self) -> int:
        """Wanted by Serve and not running: for want of a node, or still starting."""
        if self.serve is None:
            return 0
        return sum(each.num_missing for each in self.serve.applications.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "cluster": self.card.name,
            "region": self.card.region,
            "endpoint": self.card.endpoint,
            "is_running": self.is_running,
            "config": [_version_fields(version) for version in reversed(self.versions)],
            "applications": None if self.serve is None else self.serve.model_dump()["applications"],
            "serve_fault": self.serve_fault,
            "nodes": [_node_fields(node) for node in self.nodes],
            "pools": {name: pool.model_dump(mode="json") for name, pool in self.card.pools.items()},
            "full_pools": self.full_pools,
            "num_waiting_replicas": self.num_waiting_replicas,
        }

    def to_text(self) -> str:
        sections = [self._head(), self._applications(), self._nodes(), self._history()]
        return "\n\n".join("\n".join(section) for section in sections)

    def _head(self) -> Iterator[str]:
        yield f"{self.card.name} in {self.card.region}: {self.card.endpoint}"

    def _applications(self) -> Iterator[str]:
        if self.serve is None:
            yield f"Serve can't be asked: {self.serve_fault}"
            return
        if not self.serve.applications:
            yield "no applications"
        for name, application in self.serve.applications.items():
            yield self.serve.describe(name)
            for deployment, state in application.deployments.items():
                yield (
                    f"  {deployment} {state.status}: {state.num_running} of "
                    f"{state.target_num_replicas} replicas run"
                )

    def _nodes(self) -> Iterator[str]:
        if not self.nodes:
            yield "no nodes"
        for (pool, market, state), number in count_nodes(self.nodes).items():
            yield f"{number} x {pool or 'untagged'} ({market}) {state}"
        if self.num_waiting_replicas and self.serve is not None:
            full = f"; at their most nodes: {', '.join(self.full_pools)}" if self.full_pools else ""
            yield f"{self.num_waiting_replicas} replicas wait for a node or start{full}"

    def _history(self) -> Iterator[str]:
        if not self.versions:
            yield "nothing has been deployed yet"
        for version in list(reversed(self.versions))[:NUM_SHOWN_VERSIONS]:
            mark = "in force" if version is self.versions[-1] else "before"
            yield (
                f"version {version.version} {mark}: {_time(version.at)} {version.who} "
                f"{version.why}".rstrip()
            )


def _version_fields(version: ConfigVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "key": version.key,
        "at": version.at.isoformat(),
        "who": version.who,
        "why": version.why,
    }


def _node_fields(node: ClusterNode) -> dict[str, Any]:
    return {
        "instance_id": node.instance_id,
        "pool": node.pool,
        "market": node.market.value,
        "instance_type": node.instance_type,
        "zone": node.zone,
        "state": node.state,
        "private_ip": node.private_ip,
        "launched_at": node.launched_at.isoformat(),
    }


def _time(moment: datetime) -> str:
    return moment.astimezone().isoformat(sep=" ", timespec="minutes")
