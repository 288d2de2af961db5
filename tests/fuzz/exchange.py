"""One request over a real socket and what came back for it. Must not know what either means."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

SHOWN_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Request:
    """As it goes over the wire."""

    method: str
    target: str
    """Path and query, encoded."""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def __str__(self) -> str:
        return f"{self.method} {self.target} {dict(self.headers)} {self.body[:SHOWN_BYTES]!r}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Complete: a broken-off one raises ``httpx.TransportError`` where it is sent."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def media_type(self) -> str:
        content_type: str = self.headers.get("content-type", "")
        return content_type.partition(";")[0]

    def __str__(self) -> str:
        return f"{self.status} {self.media_type} {self.body[:SHOWN_BYTES]!r}"


async def send(client: httpx.AsyncClient, request: Request) -> Answer:
    response = await client.request(
        request.method, request.target, content=request.body, headers=request.headers
    )
    return Answer(response.status_code, response.headers, response.content)
