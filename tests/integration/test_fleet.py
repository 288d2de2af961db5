"""Eight paced engines on two cores behave as eight accelerators would: real scheduler, channel and
router."""

import asyncio
import time
from collections import Counter

import httpx
import pytest

from engine.config import EngineConfig, PacedConfig
from tests.integration.chain import Chain, running_chain
from tests.quickstart import MODEL

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NUM_ENGINES = 8
NUM_STREAMS = 32
NUM_TOKENS = 50
STEP_S = 0.1
PACED = EngineConfig(
    runner="paced",
    max_num_seqs=NUM_STREAMS // NUM_ENGINES,
    paced=PacedConfig(step_base_s=STEP_S, per_decode_s=0.0, per_prefill_token_s=0.0005),
)


async def ask(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> int:
    """Cached tokens of the prompt."""
    answer = await client.post(
        "/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
        },
    )
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] == max_tokens
    cached_tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached_tokens


def running_by_engine(chain: Chain) -> Counter[str]:
    members = chain.gateway.dispatchers[MODEL].fleet
    return Counter({member.engine_id: len(member.running) for member in members})


async def test_a_fleet_serves_as_many_streams_as_its_engines_together() -> None:
    async with (
        running_chain(PACED, num_engines=NUM_ENGINES) as chain,
        httpx.AsyncClient(base_url=chain.base_url, timeout=60) as client,
    ):
        await ask(client, "The first request builds the tokenizer.", 1)
        started_s = time.monotonic()
        answers = [
            asyncio.create_task(ask(client, f"Request {number}.", NUM_TOKENS))
            for number in range(NUM_STREAMS)
        ]
        await asyncio.sleep(10 * STEP_S)
        running = running_by_engine(chain)
        await asyncio.gather(*answers)
        took_s = time.monotonic() - started_s
    assert list(running.values()) == [PACED.max_num_seqs] * NUM_ENGINES
    # An engine alone would run four streams at a time, and take eight times as long.
    assert took_s < 1.5 * NUM_TOKENS * STEP_S


async def test_conversations_return_to_the_engine_that_holds_their_prefix() -> None:
    prefixes = [f"Conversation {number}: " + "word " * 300 for number in range(NUM_ENGINES)]
    async with (
        running_chain(PACED, num_engines=NUM_ENGINES) as chain,
        httpx.AsyncClient(base_url=chain.base_url, timeout=60) as client,
    ):
        first = [await ask(client, prefix, 2) for prefix in prefixes]
        second = [await ask(client, prefix + "And then?", 2) for prefix in prefixes]
    assert all(num_cached < 32 for num_cached in first)
    assert all(num_cached > 256 for num_cached in second)
