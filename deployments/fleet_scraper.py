"""The fleet as `app.fleet_metrics` asks for it: engines from discovery, gateways from Serve.

Must not know what the pages say.
"""

import itertools
from collections.abc import Sequence

from app.fleet_metrics import ScrapeTarget
from deployments.gateway_targets import GatewayTargets
from deployments.scrape_client import ScrapeClient


class FleetScraper:
    """Implements `app.fleet_metrics.Scraper`. One event loop."""

    def __init__(self, gateways: GatewayTargets) -> None:
        self._gateways = gateways
        self._client = ScrapeClient()
        self._engines: dict[str, Sequence[ScrapeTarget]] = {}

    def set_engines(self, model: str, targets: Sequence[ScrapeTarget]) -> None:
        """Of the replicas that serve `model` now."""
        self._engines[model] = targets

    async def targets(self) -> Sequence[ScrapeTarget]:
        gateways = await self._gateways.targets()
        others = itertools.chain.from_iterable(self._engines.values())
        return list(dict.fromkeys([*gateways, *others]))  # replicas of a node share its cache

    async def fetch(self, target: ScrapeTarget) -> str:
        return await self._client.fetch(target)

    async def close(self) -> None:
        await self._gateways.close()
        await self._client.close()
