"""What holds when nobody asks anything any more, whatever was asked before."""

import asyncio

import httpx

from tests.integration.chain import Chain
from tests.quickstart import MODEL


async def assert_at_rest(chain: Chain) -> None:
    """Nothing is left of all that was asked, and the gateway answers."""
    dispatcher = chain.gateway.dispatchers[MODEL]
    async with asyncio.timeout(5):
        while dispatcher.num_running or dispatcher.num_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        loads = [member.client.load for member in dispatcher.fleet]
        while any(load.num_running or load.num_waiting for load in loads):
            await asyncio.sleep(0.01)
            loads = [member.client.load for member in dispatcher.fleet]
    dispatcher.check_integrity()
    assert [load.num_free_blocks for load in loads] == [load.num_blocks for load in loads]
    for front in chain.fronts:
        front.check_health()
    async with httpx.AsyncClient(base_url=chain.base_url, timeout=10) as client:
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
        answer = await client.post("/v1/completions", json=body)
    assert answer.json()["usage"]["completion_tokens"] == 3
