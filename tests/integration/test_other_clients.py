"""Clients that people already have, unmodified, against the real model over HTTP.

Validation is as strict as each client offers: a missing or mistyped key fails the test.
"""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from engine.config import EngineConfig
from tests.integration.chain import running_chain
from tests.quickstart import MODEL

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    # Other people's code: what it warns of is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@contextmanager
def _chain_in_a_thread() -> Iterator[str]:
    """The clients block, so the chain has an event loop of its own."""
    ready = threading.Event()
    url: list[str] = []
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with running_chain(EngineConfig()) as chain:
            url.append(chain.base_url)
            ready.set()
            await end.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait(120)
        assert url, "the chain did not start"
        yield url[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(60)
        loop.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with _chain_in_a_thread() as url:
        yield url
    # What clients left open shall not warn in somebody else's test.
    _litellm().in_memory_llm_clients_cache.flush_cache()
    gc.collect()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture
def lenient(url: str) -> Iterator[openai.OpenAI]:
    """The first token of an echoed prompt has no log probability: null, as harnesses expect it,
    though the package's own types allow no null there."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _utf8_of(entries: list[Any]) -> bytes:
    return b"".join(bytes(entry.bytes) for entry in entries)


def test_openai_reads_choices_with_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=FRANCE,
        n=3,
        logprobs=True,
        top_logprobs=4,
        max_tokens=12,
        seed=-7,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={"42": -100},
        user="somebody",
        extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "min_tokens": 3},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert 9 <= answer.usage.completion_tokens <= 36
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content
        assert choice.message.content is not None
        assert _utf8_of(choice.logprobs.content) == choice.message.content.encode()
        for entry in choice.logprobs.content:
            assert len(entry.top_logprobs) == 4
            assert entry.logprob <= 0


def test_openai_streams_the_choices_that_it_would_get_whole(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": FRANCE,
        "n": 2,
        "seed": 5,
        "max_tokens": 10,
        "logprobs": True,
    }
    whole = client.chat.completions.create(**options)
    texts = ["", ""]
    shown = [b"", b""]
    usages = []
    for chunk in client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        if chunk.usage is not None:
            usages.append(chunk.usage)
            assert chunk.choices == []
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs is not None:
                shown[choice.index] += _utf8_of(choice.logprobs.content or [])
    assert texts == [choice.message.content for choice in whole.choices]
    assert shown == [text.encode() for text in texts]
    (usage,) = usages
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_openai_completes_a_list_of_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt=["The capital of France is", "One, two, three,"],
        n=2,
        best_of=3,
        max_tokens=4,
        logprobs=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert logprobs.token_logprobs is not None
        assert len(logprobs.tokens) == len(logprobs.token_logprobs)
        assert "".join(logprobs.tokens) == choice.text


def test_openai_scores_a_prompt_as_evaluation_harnesses_do(lenient: openai.OpenAI) -> None:
    likely, unlikely = (
        lenient.completions.create(
            model=MODEL,
            prompt=f"The capital of France is {city}",
            max_tokens=0,
            echo=True,
            logprobs=1,
        )
        for city in ("Paris", "Moscow")
    )
    assert likely.usage is not None
    assert likely.usage.completion_tokens == 0
    assert likely.choices[0].finish_reason == "length"
    scores = []
    for answer in (likely, unlikely):
        assert answer.choices[0].logprobs is not None
        first, *others = list[Any](answer.choices[0].logprobs.token_logprobs or [])
        assert first is None
        scores.append(sum(others))
    assert scores[0] > scores[1]


def test_openai_lists_and_retrieves_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/none")


def test_openai_names_the_field_that_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=FRANCE, n=100_000)
    assert caught.value.param == "n"


def test_langchain_invokes_and_streams(url: str) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=16,
        max_retries=0,
        stream_usage=True,
    )
    answer = model.invoke(FRANCE)
    assert "Paris" in str(answer.content)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    chunks = list(model.stream(FRANCE))
    assert "".join(str(chunk.content) for chunk in chunks) == answer.content
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage[-1]["output_tokens"] == answer.usage_metadata["output_tokens"]


def test_langchain_reads_log_probabilities(url: str) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", max_retries=0)
    answer = model.bind(logprobs=True, top_logprobs=2, max_tokens=5).invoke(FRANCE)
    entries = answer.response_metadata["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == str(answer.content).encode()


def test_langchain_completes_text(url: str) -> None:
    from langchain_openai import OpenAI

    model = OpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=5, n=1
    )
    assert "Paris" in model.invoke("The capital of France is")


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm_completes_and_streams(url: str, provider: str) -> None:
    litellm = _litellm()
    options: dict[str, Any] = {
        "model": f"{provider}/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": FRANCE,
        "temperature": 0,
        "max_tokens": 16,
        "num_retries": 0,
    }
    answer = _in_a_thread(lambda: litellm.completion(**options))
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0
    options |= {"stream": True, "stream_options": {"include_usage": True}}
    chunks = _in_a_thread(lambda: list(litellm.completion(**options)))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    usage = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert usage[-1].completion_tokens == answer.usage.completion_tokens


def test_litellm_recognises_a_prompt_that_is_too_long(url: str) -> None:
    litellm = _litellm()
    options: dict[str, Any] = {
        "model": f"openai/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": "word " * 20_000}],
        "num_retries": 0,
        "max_retries": 0,
    }
    with pytest.raises(litellm.ContextWindowExceededError):
        _in_a_thread(lambda: litellm.completion(**options))


def test_litellm_completes_text(url: str) -> None:
    litellm = _litellm()
    options: dict[str, Any] = {
        "model": f"text-completion-openai/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "prompt": "The capital of France is",
        "temperature": 0,
        "max_tokens": 5,
    }
    answer = _in_a_thread(lambda: litellm.text_completion(**options))
    assert "Paris" in answer.choices[0].text


def _litellm() -> Any:
    # Otherwise it asks the network for prices while it is imported.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litellm
    litellm.telemetry = False
    return litellm


def _in_a_thread(call: Callable[[], Any]) -> Any:
    """litellm leaves an event loop behind in the thread that calls it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
