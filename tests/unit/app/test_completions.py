"""``POST /v1/completions`` with engines that a test controls."""

import asyncio
from typing import Any

import pytest

from engine.messages import Abort, EngineRequest, FinishReason, TokenDelta
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.fakes import EOS_ID, FakeEngine, ids_of, make_card, until
from tests.unit.app.test_chat_completions import events_of


def parrot(request: EngineRequest, index: int) -> list[int]:
    """Repeats the prompt, and says which sample it is."""
    return [*request.token_ids, *ids_of(str(index))]


async def test_a_text_is_completed(make_edge: MakeEdge) -> None:
    engine = FakeEngine(reply=" world")
    body = (await (await make_edge(engine)).complete("Hello", max_tokens=20)).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"]["prompt_tokens"] == len("Hello")
    (request,) = engine.requests.values()
    assert request.token_ids == ids_of("Hello")
    assert request.request_id == body["id"]


@pytest.mark.parametrize("prompt", [["ab", "cd"], [ids_of("ab"), ids_of("cd")]])
@pytest.mark.parametrize("stream", [False, True])
async def test_choices_are_prompt_major(make_edge: MakeEdge, prompt: Any, stream: bool) -> None:
    engine = FakeEngine(reply=parrot)
    edge = await make_edge(engine)
    response = await edge.complete(prompt, n=2, stream=stream)
    if stream:
        texts = [""] * 4
        for chunk in events_of(response)[:-1]:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
    else:
        body = response.json()
        texts = [choice["text"] for choice in body["choices"]]
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
        assert body["usage"]["prompt_tokens"] == 4
        assert body["usage"]["completion_tokens"] == 4 * 4
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
    assert texts == ["ab0", "ab1", "cd0", "cd1"]
    ids = sorted(engine.requests)
    assert [request_id[-2:] for request_id in ids] == ["-0", "-1"]
    assert len({request_id[:-2] for request_id in ids}) == 1


async def test_token_ids_are_one_prompt(make_edge: MakeEdge) -> None:
    engine = FakeEngine(reply="!")
    edge = await make_edge(engine)
    body = (await edge.complete(ids_of("ab"), return_token_ids=True)).json()
    assert body["choices"][0]["prompt_token_ids"] == ids_of("ab")
    assert body["choices"][0]["token_ids"] == [*ids_of("!"), EOS_ID]


async def test_an_echo_with_log_probabilities_scores_the_prompt(make_edge: MakeEdge) -> None:
    """As lm-eval asks; nothing says how likely the first token was."""
    edge = await make_edge(FakeEngine(reply="never"))
    body = (await edge.complete("aé b", echo=True, max_tokens=0, logprobs=1)).json()
    (choice,) = body["choices"]
    assert choice["text"] == "aé b"
    assert choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", " ", "b"]
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(logprob < 0 for logprob in logprobs["token_logprobs"][1:])
    for token, logprob, top in zip(
        logprobs["tokens"][1:],
        logprobs["token_logprobs"][1:],
        logprobs["top_logprobs"][1:],
        strict=True,
    ):
        assert top[token] == logprob
        assert len(top) == 2, "the likeliest, and the one that was there"
    assert body["usage"]["completion_tokens"] == 0


async def test_an_echo_goes_on_with_the_text(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="cd"))
    fields: dict[str, Any] = {"echo": True, "logprobs": 0, "n": 2}
    body = (await edge.complete("ab", **fields)).json()
    for choice in body["choices"]:
        assert choice["text"] == "abcd"
        assert choice["logprobs"]["tokens"] == list("abcd")
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
    offsets: list[list[int]] = [[], []]
    for chunk in events_of(await edge.complete("ab", **fields, stream=True))[:-1]:
        for part in chunk["choices"]:
            offsets[part["index"]] += (part["logprobs"] or {}).get("text_offset", [])
    assert offsets == [[0, 1, 2, 3]] * 2
    plain = (await edge.complete(ids_of("ab"), echo=True)).json()
    assert plain["choices"][0]["text"] == "abcd"
    assert plain["choices"][0]["logprobs"] is None


async def test_a_special_token_that_the_prompt_spells_is_echoed(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="c"))
    body = (await edge.complete("a<|im_end|>b", echo=True, logprobs=0)).json()
    (choice,) = body["choices"]
    assert choice["text"] == "a<|im_end|>bc"
    assert choice["logprobs"]["tokens"] == ["a", "<|im_end|>", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 11, 12]


async def test_the_likeliest_samples_are_shown_and_all_are_counted(make_edge: MakeEdge) -> None:
    """Smaller token ids are likelier to the fake."""
    by_rank = sorted("abc", key=lambda char: ids_of(char)[0])

    def reply(request: EngineRequest, index: int) -> list[int]:
        return ids_of("bca"[index])

    engine = FakeEngine(reply=reply)
    body = (await (await make_edge(engine)).complete("x", n=2, best_of=3)).json()
    assert [choice["text"] for choice in body["choices"]] == by_rank[:2]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 6
    (request,) = engine.requests.values()
    assert (request.num_samples, request.sampling.num_logprobs) == (3, 0)


async def test_a_stream_ends_every_choice_once(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ab"))
    response = await edge.complete(
        ["x", "y"], stream=True, stream_options={"include_usage": True}, max_tokens=1
    )
    *chunks, usage, done = events_of(response)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 4
    ends = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(end["index"] for end in ends) == [0, 1]
    assert all(end["finish_reason"] == "length" for end in ends)
    assert all(chunk["object"] == "text_completion" for chunk in chunks)


async def test_one_prompt_that_fails_fails_all_and_stops_the_rest(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    asking = asyncio.create_task(edge.complete(["a", "b"]))
    await until(lambda: len(engine.requests) == 2)
    failing, other = engine.requests
    engine.say(other, "x")
    engine.send(TokenDelta(failing, [], FinishReason.ERROR, error="too odd", is_refused=True))
    response = await asking
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "too odd"
    assert Abort(other) in engine.aborts
    assert edge.gateway.dispatchers["m"].num_running == 0


async def test_an_engine_lost_before_the_end_costs_a_whole_answer_nothing(
    make_edge: MakeEdge,
) -> None:
    first, second = FakeEngine("a"), FakeEngine("b")
    edge = await make_edge(first, second)
    asking = asyncio.create_task(edge.complete("ab", n=2))
    await until(lambda: first.requests or second.requests)
    lost, heir = (first, second) if first.requests else (second, first)
    (request_id,) = lost.requests
    lost.say(request_id, "half an ans", index=1)
    lost.say(request_id, "done", FinishReason.LENGTH)
    lost.lose()
    await until(lambda: heir.requests)
    for index in range(2):
        heir.say(request_id, f"whole {index}", FinishReason.LENGTH, index)
    body = (await asking).json()
    assert [choice["text"] for choice in body["choices"]] == ["whole 0", "whole 1"]
    assert body["usage"]["completion_tokens"] == 2 * len("whole 0")


async def test_a_prompt_of_one_token_has_nothing_to_be_scored(make_edge: MakeEdge) -> None:
    def reply(request: EngineRequest, index: int) -> list[int]:
        return ids_of("b")

    edge = await make_edge(FakeEngine(reply=reply))
    (choice,) = (await edge.complete("a", echo=True, logprobs=1)).json()["choices"]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 2


async def test_more_log_probabilities_of_prompts_than_memory_are_refused(
    make_edge: MakeEdge,
) -> None:
    engine = FakeEngine(card=make_card(max_model_len=100_000))
    edge = await make_edge(engine)
    response = await edge.complete("a" * 50_000, echo=True, logprobs=20, max_tokens=0)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logprobs"
    assert not engine.requests


async def test_many_log_probabilities_of_a_prompt_are_sent_whole_but_not_streamed(
    make_edge: MakeEdge,
) -> None:
    edge = await make_edge(FakeEngine(reply="b"))
    asked: dict[str, Any] = {"echo": True, "logprobs": 20, "max_tokens": 0}
    whole = await edge.complete("a" * 1000, **asked)
    assert len(whole.json()["choices"][0]["logprobs"]["tokens"]) == 1000
    streamed = await edge.complete("a" * 1000, stream=True, **asked)
    assert streamed.status_code == 400
    assert streamed.json()["error"]["param"] == "stream"
