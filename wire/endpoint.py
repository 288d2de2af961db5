"""Where a process listens. Travels in replica metadata, so it turns into a plain dict and back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP address and, for peers on the same node, a Unix socket."""

    host: str
    port: int
    unix_path: str | None = None

    def to_dict(self) -> dict[str, str | int | None]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Endpoint":
        """Raises ``ValueError`` naming the field that is missing or of the wrong type."""
        host, port, unix_path = data.get("host"), data.get("port"), data.get("unix_path")
        if not isinstance(host, str):
            raise ValueError(f"endpoint needs a string 'host', got {host!r}")
        if not isinstance(port, int):
            raise ValueError(f"endpoint needs an integer 'port', got {port!r}")
        if unix_path is not None and not isinstance(unix_path, str):
            raise ValueError(f"endpoint 'unix_path' must be a string or absent, got {unix_path!r}")
        return cls(host, port, unix_path)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
