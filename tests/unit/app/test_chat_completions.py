"""``POST /v1/chat/completions`` with engines that a test controls."""

import json
from typing import Any

import httpx
import pytest

from tests.unit.app.conftest import MakeEdge
from tests.unit.app.fakes import FakeEngine


def events_of(response: httpx.Response) -> list[Any]:
    """The ``data:`` events, parsed; ``[DONE]`` stays text."""
    assert response.text.endswith("\n\n")
    lines = [event for event in response.text.split("\n\n") if event and event[0] != ":"]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    data = [line.removeprefix("data: ") for line in lines]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


async def test_a_whole_answer_has_text_finish_reason_and_usage(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="Hello"))
    response = await edge.chat()
    body = response.json()
    assert response.status_code == 200
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["model"] == "m"
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 16


async def test_a_stream_follows_the_wire_contract(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="Grüße 👋"))
    response = await edge.chat(stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-accel-buffering"] == "no"
    *chunks, usage, done = events_of(response)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] > 0
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks].count(None) == len(chunks) - 1
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == "Grüße 👋"
    assert "👋" in texts, "a character is cut"
    assert {json.dumps([c["id"], c["created"], c["model"]]) for c in [*chunks, usage]} == {
        json.dumps([usage["id"], usage["created"], "m"])
    }
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_it(make_edge: MakeEdge, stream: bool) -> None:
    engine = FakeEngine(reply="one two three")
    edge = await make_edge(engine)
    response = await edge.chat(stream=stream, stop=["two"])
    assert "two" not in response.text
    assert "three" not in response.text
    (abort,) = engine.aborts
    assert abort.num_kept_tokens == len("one two")
    assert abort.index is None
    if not stream:
        body = response.json()
        assert body["choices"][0]["message"]["content"] == "one "
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == len("one two")
