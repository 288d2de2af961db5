"""``POST /v1/chat/completions`` with engines that a test controls."""

import asyncio
import json
import time
from typing import Any

import httpx
import msgspec
import pytest

from engine.messages import EngineRequest
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.fakes import EOS_ID, FakeEngine, fake_logprobs, ids_of, make_card


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


async def test_a_slow_template_does_not_hold_up_the_event_loop(make_edge: MakeEdge) -> None:
    slow = "{% for i in range(20000) %}{{ '' if i else i }}{% endfor %}" * 3
    card = msgspec.structs.replace(make_card(), chat_template=slow)
    edge = await make_edge(FakeEngine(card=card, reply="Hello"))
    started_s = last_s = time.monotonic()
    longest_gap_s = 0.0
    answer = asyncio.create_task(edge.chat())
    while not answer.done():
        await asyncio.sleep(0.001)
        longest_gap_s = max(longest_gap_s, time.monotonic() - last_s)
        last_s = time.monotonic()
    assert answer.result().status_code == 200
    assert longest_gap_s < 0.5 * (last_s - started_s)


async def test_a_model_without_a_template_names_the_route_that_needs_none(
    make_edge: MakeEdge,
) -> None:
    card = msgspec.structs.replace(make_card(), chat_template=None)
    edge = await make_edge(FakeEngine(card=card, reply="Hello"))
    response = await edge.chat()
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]
    assert (await edge.complete()).status_code == 200


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


def numbered(request: EngineRequest, index: int) -> list[int]:
    return ids_of(f"answer {index}")


async def test_every_choice_has_its_own_text_and_the_usage_is_of_all(make_edge: MakeEdge) -> None:
    engine = FakeEngine(reply=numbered)
    body = (await (await make_edge(engine)).chat(n=3)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["answer 0", "answer 1", "answer 2"]
    (request,) = engine.requests.values()
    assert request.num_samples == 3
    assert body["usage"]["prompt_tokens"] == len(request.token_ids)
    assert body["usage"]["completion_tokens"] == 3 * (len("answer 0") + 1)


async def test_a_stream_of_several_choices_has_one_role_and_one_end_each(
    make_edge: MakeEdge,
) -> None:
    edge = await make_edge(FakeEngine(reply=numbered))
    response = await edge.chat(n=3, stream=True, stream_options={"include_usage": True})
    *chunks, usage, _ = events_of(response)
    assert usage["choices"] == []
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert sum("role" in choice["delta"] for choice in own) == 1
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["stop"]
        assert own[-1]["finish_reason"] == "stop"
        assert "".join(c["delta"].get("content", "") for c in own) == f"answer {index}"


async def test_a_stop_string_in_one_choice_leaves_the_others(make_edge: MakeEdge) -> None:
    engine = FakeEngine(reply=numbered)
    body = (await (await make_edge(engine)).chat(n=2, stop="er 1")).json()
    assert [c["message"]["content"] for c in body["choices"]] == ["answer 0", "answ"]
    (abort,) = engine.aborts
    assert (abort.index, abort.num_kept_tokens) == (1, len("answer 1"))


async def test_log_probabilities_spell_the_content(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="Grüße 👋"))
    body = (await edge.chat(logprobs=True, top_logprobs=2)).json()
    (choice,) = body["choices"]
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "Grüße 👋"
    assert len(entries) == body["usage"]["completion_tokens"] - 1, "one per shown token"
    first = fake_logprobs(ids_of("G")[0], 2)
    assert entries[0]["token"] == "G"
    assert entries[0]["logprob"] == first.logprob
    assert [top["logprob"] for top in entries[0]["top_logprobs"]] == first.top_logprobs
    assert entries[0]["top_logprobs"][1] == {
        "token": "G",
        "logprob": first.logprob,
        "bytes": list(b"G"),
    }


async def test_no_tokens_asked_for_is_a_prefill_only(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="never"))
    body = (await edge.chat(max_tokens=0)).json()
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["prompt_tokens"] > 0
    role, end, _ = events_of(await edge.chat(max_tokens=0, stream=True))
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert end["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}


async def test_token_ids_are_returned_as_vllm_names_them(make_edge: MakeEdge) -> None:
    engine = FakeEngine(reply="ab")
    edge = await make_edge(engine)
    body = (await edge.chat(return_token_ids=True)).json()
    (request,) = engine.requests.values()
    assert body["prompt_token_ids"] == request.token_ids
    assert body["choices"][0]["token_ids"] == [*ids_of("ab"), EOS_ID]
    first, *chunks, _ = events_of(await edge.chat(return_token_ids=True, stream=True))
    assert first["prompt_token_ids"] == request.token_ids
    streamed = [token_id for chunk in chunks for token_id in chunk["choices"][0]["token_ids"]]
    assert streamed == [*ids_of("ab"), EOS_ID]


async def test_every_chunk_carries_the_usage_so_far_if_asked_for(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="abc"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = events_of(await edge.chat(stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [0, 1, 2, 3, 4]
    assert chunks[-1]["usage"] == last["usage"]


async def test_the_stop_string_stays_if_it_is_asked_for(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="one two three"))
    body = (await edge.chat(stop=["two"], include_stop_str_in_output=True)).json()
    assert body["choices"][0]["message"]["content"] == "one two"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
async def test_both_paths_answer(make_edge: MakeEdge, path: str) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert (await edge.http.post(path, json=question)).status_code == 200


async def test_many_log_probabilities_are_those_of_few(make_edge: MakeEdge) -> None:
    """They are written in a thread."""
    edge = await make_edge(FakeEngine(reply="ab" * 300))
    (choice,) = (await edge.chat(logprobs=True)).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["a", "b"] * 300
    assert entries[:2] == entries[-2:]
