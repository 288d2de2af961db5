"""Bad requests get the right 4xx and name the offending field, never a 500, and disturb nobody."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.messages import FinishReason
from tests.unit.app.conftest import Edge, MakeEdge
from tests.unit.app.fakes import FakeEngine, make_card, until

USER = {"role": "user", "content": "Hi"}
GOOD: dict[str, Any] = {"model": "m", "messages": [USER]}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user"} | fields]}


CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": {"role": "user"}}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [USER, {"content": "Hi"}]}, "messages[1].role"),
    (message(role="wizard", content="Hi"), "messages[0].role"),
    (message(content=None), "messages[0].content"),
    (message(), "messages[0].content"),
    (message(content=5), "messages[0].content"),
    (message(content=[{"type": "image_url", "image_url": {}}]), "messages[0].content[0].type"),
    (message(content=[{"type": "text"}]), "messages[0].content[0].text"),
    (message(content=[{"type": "text", "text": None}]), "messages[0].content[0].text"),
    (message(content=["Hi"]), "messages[0].content[0]"),
    (message(content={"text": "Hi"}), "messages[0].content"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"modalities": ["text", "audio"]}, "modalities[1]"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template": "{{ 1/0 }}"}, "chat_template"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 129}, "cache_salt"),
]
COMPLETION_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": ["x", ""]}, "prompt"),
    ({"prompt": [1, "x"]}, "prompt[1]"),
    ({"prompt": [1, 258]}, "prompt"),
    ({"prompt": ["x"] * 10_000}, "prompt"),
    ({"suffix": "x"}, "suffix"),
    ({"logprobs": 10**6}, "logprobs"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 10**9}, "best_of"),
]
SHARED_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": float("inf")}, "top_p"),
    ({"seed": "1"}, "seed"),
    ({"n": 10**9}, "n"),
    ({"n": 17}, "n"),
    ({"stop": ["a"] * 1000}, "stop"),
    ({"stop_token_ids": [258]}, "stop_token_ids"),
    ({"logit_bias": {"258": 1}}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"response_format": {"type": "json_object"}}, "response_format.type"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
]
FIELDS = [
    *(("/v1/chat/completions", *case) for case in CHAT_FIELDS + SHARED_FIELDS),
    *(("/v1/completions", *case) for case in COMPLETION_FIELDS + SHARED_FIELDS),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/detokenize", {"tokens": [258]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
]
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": GOOD,
    "/v1/completions": {"model": "m", "prompt": "Hi"},
    "/tokenize": {"model": "m"},
    "/detokenize": {"model": "m"},
}

BODIES = [
    b"",
    b"{",
    b"null",
    b"5",
    b'"text"',
    b"[]",
    b"NaN",
    b'{"model": "m",}',
    b'{"model": "m" "messages": []}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b"[" * 100_000,
    b'{"x": NaN, "y": ' + b"[" * 100_000,
    b'{"x": NaN, "y": ' + b"9" * 10_000 + b"}",
    b'{"model":"m","messages":[{"role":"user","content":"","tool_calls":[{"NaN":"\\ud800"}]}]}',
    b"\x00\x01\x02",
]


@pytest.fixture
async def edge(make_edge: MakeEdge) -> AsyncIterator[Edge]:
    """Another client's stream runs through the whole test."""
    engine = FakeEngine(card=make_card(max_model_len=256))
    edge = await make_edge(engine, max_body_bytes=1_000_000)
    other = asyncio.create_task(edge.chat(GOOD, stream=True))
    await until(lambda: engine.sinks)
    (request_id,) = engine.sinks
    engine.say(request_id, "be")
    yield edge
    assert list(engine.requests) == [request_id], "a bad request reached the engine"
    engine.say(request_id, "fore")
    engine.say_ids(request_id, [], FinishReason.STOP)
    assert "[DONE]" in (await other).text


@pytest.mark.parametrize(
    ("path", "fields", "param"), FIELDS, ids=lambda value: json.dumps(value)[:60]
)
async def test_a_bad_field_is_refused_by_name(
    edge: Edge, path: str, fields: dict[str, Any], param: str
) -> None:
    body = json.dumps(MINIMAL[path] | fields).encode()
    response = await edge.http.post(path, content=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param in error["message"]
    assert error.keys() >= {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", MINIMAL)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:40]))
async def test_a_body_that_is_no_json_object_is_refused(edge: Edge, path: str, body: bytes) -> None:
    response = await edge.http.post(path, content=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_a_missing_field_is_named(edge: Edge, missing: str) -> None:
    fields = {key: value for key, value in GOOD.items() if key != missing}
    response = await edge.http.post("/v1/chat/completions", json=fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == missing


@pytest.mark.parametrize(
    "messages", [[USER] * 10_001, [{"role": "user", "content": [{"type": "text"}] * 10_001}]]
)
async def test_too_many_messages_or_parts_are_refused(edge: Edge, messages: Any) -> None:
    response = await edge.http.post("/v1/chat/completions", json=GOOD | {"messages": messages})
    assert response.status_code == 400
    assert "at most 10000" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages"


def nested(depth: int) -> Any:
    return "x" if depth == 0 else {"a": [nested(depth - 1)]}


@pytest.mark.parametrize(
    "tool_calls",
    [[nested(16)], [nested(200)], [{}] * 50_001, [{"a": [0] * 50_000}]],
    ids=["nested", "nested far", "many", "many values"],
)
async def test_tool_calls_too_large_to_be_read_are_refused(edge: Edge, tool_calls: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "x", "tool_calls": tool_calls}]
    response = await edge.http.post("/v1/chat/completions", json=GOOD | {"messages": messages})
    assert response.status_code == 400, response.text
    assert "at most 50000 values, nested at most 32 deep" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages"


async def test_tool_calls_within_the_limits_are_accepted(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    tool_calls = [nested(15), {"a": [0] * 49_000}]
    messages = [USER, {"role": "assistant", "content": "x", "tool_calls": tool_calls}]
    response = await edge.chat(GOOD | {"messages": messages})
    assert response.status_code == 200, response.text


async def test_empty_messages_have_openais_code(edge: Edge) -> None:
    response = await edge.http.post("/v1/chat/completions", json=GOOD | {"messages": []})
    assert response.json()["error"]["code"] == "empty_array"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/completions", {}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
async def test_an_unknown_model_is_not_found(edge: Edge, path: str, fields: dict[str, Any]) -> None:
    response = await edge.http.post(path, json=MINIMAL[path] | fields | {"model": "nope"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert response.json()["error"]["param"] is None


async def test_a_prompt_and_answer_over_the_context_are_told_what_would_fit(edge: Edge) -> None:
    response = await edge.http.post("/v1/chat/completions", json=GOOD | {"max_tokens": 256})
    error = response.json()["error"]
    assert response.status_code == 400
    assert response.headers["x-should-retry"] == "false"
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert "maximum context length is 256 tokens" in error["message"]
    room = int(error["message"].split("at most ")[1].split(" ")[0])
    assert 0 < room < 256


@pytest.mark.parametrize("num_chars", [300, 900_000])
async def test_a_prompt_over_the_context_is_refused(edge: Edge, num_chars: int) -> None:
    long = [{"role": "user", "content": "x" * num_chars}]
    response = await edge.http.post("/v1/chat/completions", json=GOOD | {"messages": long})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert response.headers["x-should-retry"] == "false"


async def test_a_body_over_the_limit_is_refused_by_its_length(edge: Edge) -> None:
    body = b'{"x": "' + b"a" * 10_000_000 + b'"}'
    response = await edge.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"


async def test_a_chunked_body_that_grows_over_the_limit_is_refused(edge: Edge) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"a" * 10_000

    response = await edge.http.post("/v1/chat/completions", content=chunks())
    assert response.status_code == 413


async def test_a_compressed_body_is_refused_by_what_it_is(edge: Edge) -> None:
    response = await edge.http.post(
        "/v1/chat/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip"}
    )
    assert response.status_code == 400
    assert "Content-Encoding 'gzip' is not supported" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [[("x", "a" * 66_000)], [(f"x-{number}", "") for number in range(300)]],
    ids=["long", "many"],
)
async def test_a_flood_of_headers_is_refused(edge: Edge, headers: list[tuple[str, str]]) -> None:
    response = await edge.http.post("/v1/chat/completions", json=GOOD, headers=headers)
    assert response.status_code == 431
    assert response.json()["error"]["code"] == "headers_too_large"


async def test_the_templates_own_words_are_passed_on(edge: Edge) -> None:
    response = await edge.http.post(
        "/v1/chat/completions",
        json=GOOD | {"messages": [{"role": "tool", "content": "refuse me"}]},
    )
    assert response.status_code == 400
    assert "no tools here" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "verbosity": "low"},
        {"kv_transfer_params": {}, "priority": 1, "cache_salt": "x"},
        {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 1},
        {"n": 1, "logprobs": False, "response_format": {"type": "text"}},
        {"tools": [], "tool_choice": "auto", "modalities": ["text"], "logit_bias": {}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        dict.fromkeys(("max_tokens", "temperature", "top_p", "seed", "stop", "stream")),
        {"seed": -5, "max_completion_tokens": 3, "max_tokens": 5, "stop": []},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]},
    ],
    ids=lambda extra: ",".join(extra)[:60],
)
async def test_what_does_not_change_the_answer_is_accepted(
    make_edge: MakeEdge, extra: dict[str, Any]
) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    response = await edge.chat(GOOD | extra)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("POST", "/v1", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/nope/there", 404),
        ("GET", "/health/", 404),  # no redirect: it would lead to whatever Host says
        ("POST", "/v1/chat/completions/", 404),
    ],
)
async def test_unknown_paths_and_methods_are_json_errors(
    edge: Edge, method: str, path: str, status: int
) -> None:
    response = await edge.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"].keys() >= {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": "required"}, "no call can be forced"),
        ({"response_format": {"type": "json_object"}}, "structured outputs are not supported"),
        ({"seed": 2**64}, "from -2^63 to 2^64 - 1"),
        (
            message(content=[{"type": "image_url", "image_url": {}}]),
            "only parts of the type 'text'",
        ),
    ],
)
async def test_a_refusal_says_what_is_allowed(
    edge: Edge, fields: dict[str, Any], words: str
) -> None:
    response = await edge.http.post("/v1/chat/completions", json=GOOD | fields)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


async def test_a_prompt_of_a_wrong_kind_is_told_all_that_are_allowed(edge: Edge) -> None:
    body = {"model": GOOD["model"], "prompt": {"a": 1}}
    response = await edge.http.post("/v1/completions", json=body)
    assert "a text, token ids, or a list of either" in response.json()["error"]["message"]
