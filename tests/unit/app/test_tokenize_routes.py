"""``POST /tokenize`` and ``POST /detokenize``, over HTTP."""

from typing import Any

import httpx
import pytest

from tests.unit.app.conftest import Edge, MakeEdge
from tests.unit.app.fakes import EOS_ID, IM_START_ID, FakeEngine, ids_of

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


async def tokenize(edge: Edge, **fields: Any) -> httpx.Response:
    return await edge.http.post("/tokenize", json={"model": "m"} | fields)


async def detokenize(edge: Edge, tokens: Any) -> httpx.Response:
    return await edge.http.post("/detokenize", json={"model": "m", "tokens": tokens})


async def test_a_text_is_tokenized(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())
    answer = (await tokenize(edge, prompt="Hi é")).json()
    expected = {"count": 5, "max_model_len": 2048, "tokens": ids_of("Hi é"), "token_strs": None}
    assert answer == expected


async def test_the_tokens_names_are_given_on_demand(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())
    answer = (await tokenize(edge, prompt="a b<|im_end|>", return_token_strs=True)).json()
    assert answer["token_strs"] == ["a", "Ġ", "b", "<|im_end|>"]


async def test_a_conversation_costs_what_its_answer_says(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="Hello"))
    answer = (await tokenize(edge, messages=MESSAGES)).json()
    usage = (await edge.chat(messages=MESSAGES)).json()["usage"]
    assert answer["count"] == len(answer["tokens"]) == usage["prompt_tokens"]
    assert answer["tokens"][0] == IM_START_ID


async def test_what_was_tokenized_comes_back(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())
    tokens = (await tokenize(edge, messages=MESSAGES)).json()["tokens"]
    prompt = (await detokenize(edge, tokens)).json()["prompt"]
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


async def test_a_long_text_is_tokenized_off_the_loop(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(), tokenize_off_loop_chars=10)
    text = "long " * 5000
    tokens = (await tokenize(edge, prompt=text)).json()["tokens"]
    assert tokens == ids_of(text)
    assert (await detokenize(edge, tokens)).json() == {"prompt": text}


@pytest.mark.parametrize("tokens", [[258], [-1], ["1"], [2**40], "1", None])
async def test_tokens_that_are_none_are_refused(make_edge: MakeEdge, tokens: Any) -> None:
    edge = await make_edge(FakeEngine())
    response = await detokenize(edge, tokens)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tokens")


async def test_half_characters_and_nothing_are_text_too(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())
    assert (await detokenize(edge, ids_of("👋")[:2])).json() == {"prompt": "\ufffd"}
    assert (await detokenize(edge, [])).json() == {"prompt": ""}
    assert (await tokenize(edge, prompt="")).json()["tokens"] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages"),
        ({"messages": MESSAGES, "tools": [TOOL]}, "tools"),
    ],
)
async def test_bad_requests_name_the_field(
    make_edge: MakeEdge, fields: dict[str, Any], param: str
) -> None:
    edge = await make_edge(FakeEngine())
    response = await tokenize(edge, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_an_unknown_model_is_not_found(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())
    assert (await tokenize(edge, model="other", prompt="a")).status_code == 404


async def test_without_a_replica_the_model_is_loading(make_edge: MakeEdge) -> None:
    edge = await make_edge()
    assert (await tokenize(edge, prompt="a")).status_code == 503


async def test_an_end_token_of_a_text_acts(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())
    assert (await tokenize(edge, prompt="<|im_end|>")).json()["tokens"] == [EOS_ID]
