"""Asks a replica for its own metrics. A replica is not trusted: its answer is bounded.

The time is bounded by the caller, for all replicas together.
"""

import aiohttp

from app.exposition import MAX_PAGE_BYTES
from app.fleet_metrics import ScrapeTarget

MAX_CONNECTIONS = 256
"""Side by side; those to a large fleet take turns."""
_TOTAL_TIMEOUT_S = 5.0
"""A last resort, for a fetch that nobody cancelled."""


class ScrapeError(Exception):
    """The replica answered, but with no page that can be used."""


class ScrapeClient:
    """Owner of the connections; they are kept for the next time."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, target: ScrapeTarget) -> str:
        """Its page. Raises `ScrapeError`, `aiohttp.ClientError`, `TimeoutError`."""
        if self._session is None:  # it wants a running event loop
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_TOTAL_TIMEOUT_S),
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"accept-encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
            )
        url = f"http://{target.address}/metrics"
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise ScrapeError(f"{url} answered with status {response.status}")
            page = bytearray()
            async for chunk in response.content.iter_any():
                page += chunk
                if len(page) > MAX_PAGE_BYTES:
                    raise ScrapeError(f"{url} sent more than {MAX_PAGE_BYTES} bytes")
        return page.decode("utf-8", errors="replace")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
