"""The page of the whole fleet: dead replicas neither fail nor delay it."""

import asyncio
import json
import time
from collections.abc import Sequence

from app.fleet_metrics import SCRAPE_TIMEOUT_S, FleetMetrics, ScrapeTarget

PAGE = "# TYPE headwater:g gauge\nheadwater:g 1\n"


class Fleet:
    """A ``Scraper``: replicas ``dead`` and ``stuck`` behave as they are called."""

    def __init__(self, *replicas: str) -> None:
        self.replicas = replicas
        self.num_fetches = 0

    async def targets(self) -> Sequence[ScrapeTarget]:
        return [ScrapeTarget(replica, "engine", "10.0.0.7", 80) for replica in self.replicas]

    async def fetch(self, target: ScrapeTarget) -> str:
        self.num_fetches += 1
        if target.replica == "dead":
            raise ConnectionRefusedError
        if target.replica == "stuck":
            await asyncio.sleep(60)
        return PAGE


async def test_dead_and_stuck_replicas_are_down_and_cost_a_bounded_time() -> None:
    metrics = FleetMetrics("me", PAGE.encode, Fleet("me", "fine", "dead", "stuck"))
    started_s = time.monotonic()
    text = (await metrics.page()).decode()
    assert time.monotonic() - started_s < SCRAPE_TIMEOUT_S + 0.2
    assert 'headwater:g{replica="me",role="gateway"} 1' in text
    assert 'headwater:g{replica="fine",role="engine"} 1' in text
    for down in ("dead", "stuck"):
        assert f'headwater:scrape_up{{replica="{down}",role="engine"}} 0' in text


async def test_many_who_ask_at_a_time_cost_one_scrape() -> None:
    fleet = Fleet("fine")
    metrics = FleetMetrics("me", PAGE.encode, fleet)
    pages = await asyncio.gather(*(metrics.page() for _ in range(5)))
    assert fleet.num_fetches == 1
    assert len(set(pages)) == 1


async def test_discovery_names_every_scrape_port() -> None:
    groups = json.loads(await FleetMetrics("me", PAGE.encode, Fleet("me", "a")).discovery())
    assert groups[1] == {"targets": ["10.0.0.7:80"], "labels": {"replica": "a", "role": "engine"}}
