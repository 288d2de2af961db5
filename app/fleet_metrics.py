"""The metrics of all replicas on one page, and where each one can be asked for its own.

Behind one port with several gateways a random one answers, whose own counters would jump. Must not
know how replicas are found or fetched: ``deployments`` hands that in.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import orjson

from app.exposition import MAX_PAGE_BYTES, Page, merge_pages

logger = logging.getLogger(__name__)

SCRAPE_TIMEOUT_S = 0.8
"""For all replicas together, side by side: a dead one must not delay the page more than that."""


Role = Literal["gateway", "autoscaler", "engine", "node_cache"]


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """Where one replica serves its own ``/metrics``."""

    replica: str
    role: Role
    host: str
    port: int

    @property
    def address(self) -> str:
        """``host:port``; an IPv6 address stands in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Scraper(Protocol):
    """Finds and asks the replicas."""

    async def targets(self) -> Sequence[ScrapeTarget]:
        """All of the fleet that are known now, this process's own included. Must not raise."""
        ...

    async def fetch(self, target: ScrapeTarget) -> str:
        """Its page. May raise any ``Exception`` and take too long."""
        ...


class Alone:
    """A ``Scraper`` for a gateway that knows of no other replica."""

    async def targets(self) -> Sequence[ScrapeTarget]:
        return ()

    async def fetch(self, target: ScrapeTarget) -> str:
        raise NotImplementedError


class FleetMetrics:
    """Asked by the routes."""

    def __init__(self, replica: str, render: Callable[[], bytes], scraper: Scraper) -> None:
        """``render``: this gateway's own page; ``replica``: what it is called."""
        self._replica = replica
        self._render = render
        self._scraper = scraper
        self._scrape: asyncio.Task[bytes] | None = None

    async def page(self) -> bytes:
        """Only this gateway's, as it is, where no replica is known.

        However many ask at a time, the replicas are asked once."""
        scrape = self._scrape
        if scrape is None:
            scrape = self._scrape = asyncio.create_task(self._merged())
            scrape.add_done_callback(self._forget)
        return await asyncio.shield(scrape)

    async def discovery(self) -> bytes:
        """All scrape ports, as JSON for Prometheus's HTTP service discovery."""
        groups = [
            {
                "targets": [target.address],
                "labels": {"replica": target.replica, "role": target.role},
            }
            for target in await self._scraper.targets()
        ]
        return orjson.dumps(groups)

    def _forget(self, scrape: "asyncio.Task[bytes]") -> None:
        self._scrape = None

    async def _merged(self) -> bytes:
        targets = await self._scraper.targets()
        if not targets:
            return self._render()
        others = [target for target in targets if target.replica != self._replica]
        tasks = [asyncio.create_task(self._fetch(target)) for target in others]
        if tasks:
            await asyncio.wait(tasks, timeout=SCRAPE_TIMEOUT_S)
        texts = [task.result() if task.done() else None for task in tasks]
        for task in tasks:
            task.cancel()
        pages = [Page(self._replica, "gateway", self._render().decode())]
        pages += [
            Page(target.replica, target.role, text)
            for target, text in zip(others, texts, strict=True)
        ]
        # Of a large fleet it takes a while.
        return await asyncio.to_thread(merge_pages, pages)

    async def _fetch(self, target: ScrapeTarget) -> str | None:
        try:
            text = await self._scraper.fetch(target)
        except Exception as error:
            logger.debug("%s %s: no metrics: %r", target.role, target.replica, error)
            return None
        return text if len(text) <= MAX_PAGE_BYTES else None
