"""What an engine replica says of itself: replica metadata that brings its address to gateways."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from app.fleet_metrics import Role, ScrapeTarget
from wire.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Advertisement:
    """How to reach one engine replica."""

    engine_id: str
    endpoint: Endpoint
    secret: bytes = field(repr=False)
    """A connection must prove that it knows it."""
    scrape: ScrapeTarget | None = None
    """Where it serves its metrics, for all nodes."""
    node_scrape: ScrapeTarget | None = None
    """Where its node's cache does, which replicas of the node share."""

    def to_metadata(self) -> dict[str, Any]:
        """Plain values only: Serve wants the metadata to be JSON."""
        return {
            "engine_id": self.engine_id,
            "endpoint": self.endpoint.to_dict(),
            "secret": self.secret.hex(),
            "scrape": _to_dict(self.scrape),
            "node_scrape": _to_dict(self.node_scrape),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """Raises `ValueError`, without the values in it, for metadata of another shape."""
        try:
            engine_id, endpoint, secret = (
                metadata[key] for key in ("engine_id", "endpoint", "secret")
            )
            return cls(
                engine_id,
                Endpoint.from_dict(endpoint),
                bytes.fromhex(secret),
                _from_dict(metadata.get("scrape"), "engine"),
                _from_dict(metadata.get("node_scrape"), "node_cache"),
            )
        except KeyError as error:
            raise ValueError(f"its metadata has no {error}: is it of another version?") from None

    def seen_from(self, *, is_same_node: bool) -> Endpoint:
        """For other nodes without the Unix socket, whose path may exist there by chance."""
        return self.endpoint if is_same_node else replace(self.endpoint, unix_path=None)


def _to_dict(target: ScrapeTarget | None) -> dict[str, Any] | None:
    if target is None:
        return None
    return {"replica": target.replica, "host": target.host, "port": target.port}


def _from_dict(target: Mapping[str, Any] | None, role: Role) -> ScrapeTarget | None:
    if target is None:
        return None
    return ScrapeTarget(target["replica"], role, target["host"], target["port"])
