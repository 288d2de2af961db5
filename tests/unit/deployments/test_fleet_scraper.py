"""What the gateway scrapes."""

from app.fleet_metrics import ScrapeTarget
from deployments.fleet_scraper import FleetScraper

NODE = ScrapeTarget("node/a", "node_cache", "10.0.0.7", 9001)
GATEWAY = ScrapeTarget("gateway", "gateway", "10.0.0.7", 9000)


class OneGateway:
    async def targets(self) -> list[ScrapeTarget]:
        return [GATEWAY]

    async def close(self) -> None: ...


async def test_a_cache_that_replicas_of_several_models_share_is_scraped_once() -> None:
    scraper = FleetScraper(OneGateway())  # type: ignore[arg-type]
    engines = [ScrapeTarget(f"m/{number}", "engine", "10.0.0.7", number) for number in (1, 2)]
    scraper.set_engines("m", [engines[0], NODE])
    scraper.set_engines("n", [engines[1], NODE])
    assert await scraper.targets() == [GATEWAY, engines[0], NODE, engines[1]]
    await scraper.close()
