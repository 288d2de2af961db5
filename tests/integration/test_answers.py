"""Several samples, log probabilities and text completions of the real model, over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import torch
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.config import EngineConfig
from tests.integration.chain import Chain, running_chain
from tests.quickstart import MODEL, quickstart_checkpoint

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

QUESTION: Any = [{"role": "user", "content": "Name a city, an emoji 👋 and 漢字."}]
TEXT = "The capital of France is Paris. The capital of Italy is"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain() -> AsyncIterator[Chain]:
    async with running_chain(EngineConfig(dtype="float32", max_model_len=1024)) as chain:
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


def own_logprobs(text: str) -> list[float]:
    """Of every token of ``text`` but the first, by transformers."""
    folder = quickstart_checkpoint().path
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0, :-1], dim=-1)
    picked: list[float] = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return picked


async def test_samples_streamed_are_the_samples_of_the_whole(client: AsyncOpenAI) -> None:
    ask: dict[str, Any] = {
        "model": MODEL,
        "messages": QUESTION,
        "n": 4,
        "seed": 11,
        "temperature": 1.0,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = await client.chat.completions.create(**ask)
    assert len({choice.message.content for choice in whole.choices}) > 1
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 4 * 12
    stream = await client.chat.completions.create(
        **ask, stream=True, stream_options={"include_usage": True}
    )
    texts = [""] * 4
    entries: list[list[Any]] = [[] for _ in range(4)]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs is not None:
                entries[choice.index] += choice.logprobs.content or []
    for choice in whole.choices:
        assert choice.message.content == texts[choice.index]
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        assert [entry.token for entry in content] == [e.token for e in entries[choice.index]]
        spelled = b"".join(bytes(entry.bytes or []) for entry in content)
        assert spelled.decode() == choice.message.content
        for entry in content:
            top = [other.logprob for other in entry.top_logprobs]
            assert top == sorted(top, reverse=True)
            assert entry.logprob <= top[0]


async def test_a_prompt_is_scored_as_transformers_scores_it(chain: Chain) -> None:
    """As lm-eval asks. OpenAI's client has no null among the numbers, though the API does."""
    async with httpx.AsyncClient(base_url=chain.base_url, timeout=60) as http:
        asked = {"model": MODEL, "prompt": TEXT, "echo": True, "max_tokens": 0, "logprobs": 1}
        (choice,) = (await http.post("/v1/completions", json=asked)).json()["choices"]
    assert choice["text"] == TEXT
    logprobs = choice["logprobs"]
    tokens = logprobs["tokens"]
    assert "".join(tokens) == TEXT
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(own_logprobs(TEXT), abs=1e-3)
    offsets = [len("".join(tokens[:position])) for position in range(len(tokens))]
    assert logprobs["text_offset"] == offsets
    for token, logprob, top in zip(
        tokens[1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert top[token] == logprob <= max(top.values())
        assert len(top) <= 2


async def test_prompts_are_completed_in_their_order(client: AsyncOpenAI) -> None:
    prompts = ["The capital of France is", "One, two, three,", "The capital of France is"]
    completion = await client.completions.create(
        model=MODEL, prompt=prompts, n=2, max_tokens=4, temperature=0
    )
    texts = [choice.text for choice in completion.choices]
    assert [choice.index for choice in completion.choices] == list(range(6))
    assert texts[0] == texts[1] == texts[4] == texts[5]
    assert texts[0].startswith(" Paris")
    assert texts[2].startswith(" four")


async def test_the_likeliest_of_many_is_one_of_them(client: AsyncOpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "prompt": TEXT, "max_tokens": 4, "seed": 3}
    every = await client.completions.create(**ask, n=6, logprobs=0)
    best = await client.completions.create(**ask, n=1, best_of=6)
    means = []
    for choice in every.choices:
        assert choice.logprobs is not None
        logprobs = choice.logprobs.token_logprobs or []
        means.append(sum(logprob or 0.0 for logprob in logprobs) / len(logprobs))
    assert best.choices[0].text == every.choices[means.index(max(means))].text
    assert best.usage is not None
    assert best.usage.completion_tokens == 24


async def test_token_ids_and_their_text_are_completed_alike(chain: Chain) -> None:
    async with httpx.AsyncClient(base_url=chain.base_url, timeout=60) as http:
        asked = {"model": MODEL, "max_tokens": 5, "temperature": 0, "return_token_ids": True}
        text = (await http.post("/completions", json=asked | {"prompt": TEXT})).json()
        (choice,) = text["choices"]
        ids = choice["prompt_token_ids"]
        again = (await http.post("/completions", json=asked | {"prompt": ids})).json()
        assert again["choices"][0]["text"] == choice["text"]
        counted = (await http.post("/tokenize", json={"model": MODEL, "prompt": TEXT})).json()
        assert counted["tokens"] == ids
