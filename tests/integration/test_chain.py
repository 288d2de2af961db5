"""The real model behind the real gateway, over HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from statistics import median

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from engine.config import EngineConfig
from tests.integration.chain import Chain, running_chain
from tests.quickstart import MODEL

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

NUM_STREAMS = 64


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain() -> AsyncIterator[Chain]:
    """Two engines in float32, so that an answer does not depend on what else is in the batch."""
    async with running_chain(EngineConfig(dtype="float32"), num_engines=2) as chain:
        yield chain


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(chain: Chain) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{chain.base_url}/v1",
        api_key="none",
        max_retries=0,
        _strict_response_validation=True,
    ) as client:
        yield client


async def ask(client: AsyncOpenAI, prompt: str, max_tokens: int = 16) -> str:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=max_tokens,
    )
    return answer.choices[0].message.content or ""


@dataclass(frozen=True, slots=True)
class Streamed:
    text: str
    ttft_s: float
    cached_tokens: int
    prompt_tokens: int


async def ask_streaming(client: AsyncOpenAI, prompt: str, max_tokens: int = 16) -> Streamed:
    started_s = time.perf_counter()
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=max_tokens,
        stream=True,
        stream_options={"include_usage": True},
    )
    ttft_s, text, usage = 0.0, "", None
    async for chunk in stream:
        if chunk.usage is not None:
            usage = chunk.usage
        for choice in chunk.choices:
            if choice.delta.content:
                ttft_s = ttft_s or time.perf_counter() - started_s
                text += choice.delta.content
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
    return Streamed(text, ttft_s, cached_tokens, usage.prompt_tokens)


async def test_knows_the_capital_of_france(client: AsyncOpenAI) -> None:
    question = "What is the capital of France?"
    answer = await ask(client, question)
    assert "Paris" in answer
    assert (await ask_streaming(client, question)).text == answer


async def test_concurrent_streams_do_not_mix(client: AsyncOpenAI) -> None:
    numbers = [100 + 7 * n for n in range(NUM_STREAMS)]
    prompts = [f"My number is {number}. What is my number?" for number in numbers]
    together = await asyncio.gather(*(ask_streaming(client, prompt) for prompt in prompts))
    alone = [await ask(client, prompt) for prompt in prompts]
    assert [streamed.text for streamed in together] == alone
    # A model this small gives many numbers back, not all; it must give some for this to prove much.
    given_back = [str(number) in text for number, text in zip(numbers, alone, strict=True)]
    assert sum(given_back) > NUM_STREAMS // 3


async def num_shared_tokens(chain: Chain, prompts: list[str]) -> int:
    """In the blocks that two prompts have in common."""
    card = chain.gateway.dispatchers[MODEL].card
    assert card is not None
    tokenizer = await chain.gateway.tokenizers.get(card)
    keys = [tokenizer.prompt([{"role": "user", "content": p}]).block_keys for p in prompts]
    return len(set(keys[0]).intersection(keys[1])) * card.block_size_tokens


async def test_a_shared_prefix_is_prefilled_once(chain: Chain, client: AsyncOpenAI) -> None:
    prefix = " ".join(f"Fact {n}: item {n * 7919 % 1000} is kept." for n in range(150))
    misses, hits = [], []
    for trial in range(3):
        prompts = [f"{trial} {prefix} Which item is {which}?" for which in ("first", "last")]
        first, second = [await ask_streaming(client, prompt, 1) for prompt in prompts]
        assert first.prompt_tokens > 2000
        assert first.cached_tokens <= 16, "only the template's own start may be known"
        assert second.cached_tokens == await num_shared_tokens(chain, prompts) > 1900
        misses.append(first.ttft_s)
        hits.append(second.ttft_s)
    assert median(hits) <= 0.15 * median(misses)
    changed = await ask_streaming(client, f"x {prefix} Which item is last?", 1)
    assert changed.cached_tokens <= 16
