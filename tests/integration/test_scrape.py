"""A replica's own metrics page over a socket."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from app.exposition import MAX_PAGE_BYTES
from app.fleet_metrics import ScrapeTarget
from deployments.scrape_client import ScrapeClient, ScrapeError
from deployments.scrape_server import ScrapeServer

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"


class Page:
    """What the replica renders."""

    def __init__(self) -> None:
        self.text = b"headwater:g 1\n"
        self.is_broken = False

    def render(self) -> bytes:
        if self.is_broken:
            raise RuntimeError("broken")
        return self.text


@pytest.fixture
async def client() -> AsyncIterator[ScrapeClient]:
    client = ScrapeClient()
    yield client
    await client.close()


async def serve(page: Page) -> tuple[ScrapeServer, ScrapeTarget]:
    server = ScrapeServer(page.render, host=HOST)
    return server, ScrapeTarget("e", "engine", HOST, await server.start())


async def test_the_page_is_rendered_when_it_is_asked_for(client: ScrapeClient) -> None:
    page = Page()
    server, target = await serve(page)
    assert await client.fetch(target) == "headwater:g 1\n"
    page.text = b"headwater:g 2\n"
    assert await client.fetch(target) == "headwater:g 2\n"
    async with aiohttp.request("GET", f"http://{target.address}/other") as response:
        assert response.status == 404
    async with aiohttp.request("GET", f"http://{target.address}/metrics") as response:
        assert response.content_type == "text/plain"
    await server.close()


async def test_a_page_that_cannot_be_rendered_is_an_error_and_the_next_one_is_not(
    client: ScrapeClient,
) -> None:
    page = Page()
    server, target = await serve(page)
    page.is_broken = True
    with pytest.raises(ScrapeError, match="500"):
        await client.fetch(target)
    page.is_broken = False
    assert await client.fetch(target) == "headwater:g 1\n"
    await server.close()


async def test_a_page_that_is_too_long_is_not_read_to_its_end(client: ScrapeClient) -> None:
    page = Page()
    page.text = b"x" * (MAX_PAGE_BYTES + 1)
    server, target = await serve(page)
    with pytest.raises(ScrapeError, match="more than"):
        await client.fetch(target)
    await server.close()


async def test_a_closed_server_refuses_even_a_connection_that_was_kept(
    client: ScrapeClient,
) -> None:
    server, target = await serve(Page())
    await client.fetch(target)
    await server.close()
    await server.close()
    with pytest.raises(aiohttp.ClientError):
        await client.fetch(target)


async def test_the_next_page_is_served_where_the_last_one_was_if_it_can() -> None:
    first, target = await serve(Page())
    second = ScrapeServer(Page().render, host=HOST)
    assert await second.start(target.port) != target.port
    await first.close()
    third = ScrapeServer(Page().render, host=HOST)
    assert await third.start(target.port) == target.port
    await second.close()
    await third.close()
