"""Streams at their edges: clients that leave or do not read, engines that die, idle gaps."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from app.server import create_asgi_app
from engine.messages import Abort, FinishReason, TokenDelta
from tests.unit.app.conftest import Edge, MakeEdge
from tests.unit.app.fakes import EOS_ID, FakeEngine, ids_of, until


class RawClient:
    """An ASGI client that reads and leaves when the test says so."""

    def __init__(
        self,
        edge: Edge,
        *,
        is_body_complete: bool = True,
        path: str = "/v1/chat/completions",
        **fields: Any,
    ) -> None:
        question = [{"role": "user", "content": "Hi"}]
        body = {"model": "m", "messages": question, "stream": True} | fields
        self.sent: list[Message] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._left = asyncio.Event()
        self._body = json.dumps(body).encode()
        self._has_read = False
        self._is_body_complete = is_body_complete
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "root_path": "",
            "headers": [],
            "query_string": b"",
        }
        app = create_asgi_app(edge.gateway)
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    @property
    def is_complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> Message:
        if not self._has_read:
            self._has_read = True
            return {
                "type": "http.request",
                "body": self._body,
                "more_body": not self._is_body_complete,
            }
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.may_send.wait()
        self.sent.append(message)


async def request_id_at(engine: FakeEngine, number: int = 0) -> str:
    await until(lambda: len(engine.requests) > number)
    return list(engine.requests)[number]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("has_token", [True, False])
async def test_a_client_that_leaves_ends_its_request_at_once(
    make_edge: MakeEdge, stream: bool, has_token: bool
) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine), stream=stream)
    request_id = await request_id_at(engine)
    if has_token:
        engine.say(request_id, "a")
    await asyncio.sleep(0.01)
    client.leave()
    await client.task
    assert engine.aborts == [Abort(request_id)]
    assert not client.is_complete


async def test_a_client_that_leaves_ends_all_samples_of_all_prompts(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    client = RawClient(edge, path="/v1/completions", prompt=["a", "b"], n=3)
    await until(lambda: len(engine.requests) == 2)
    engine.say(await request_id_at(engine), "x", index=2)
    client.leave()
    await client.task
    assert sorted(abort.request_id for abort in engine.aborts) == sorted(engine.requests)
    assert {(abort.num_kept_tokens, abort.index) for abort in engine.aborts} == {(None, None)}
    assert not engine.sinks
    assert edge.gateway.dispatchers["m"].num_running == 0


async def test_the_engines_last_counts_are_recorded_after_the_client_left(
    make_edge: MakeEdge,
) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    client = RawClient(edge)
    request_id = await request_id_at(engine)
    engine.say(request_id, "abc")
    await until(lambda: "abc" in client.text)
    engine.num_generated[request_id, 0] += 2  # computed before it heard of the abort
    client.leave()
    await client.task
    metrics = edge.gateway.render_metrics().decode()
    assert 'headwater:tokens_total{kind="completion",model_name="m"} 5.0' in metrics
    assert 'status="499"' in metrics


async def test_a_client_that_leaves_amid_its_body_asks_nothing(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine), is_body_complete=False)
    client.leave()
    await client.task
    assert not engine.requests
    assert not client.sent


async def test_a_client_that_leaves_the_queue_is_forgotten(make_edge: MakeEdge) -> None:
    engine = FakeEngine(num_credits=0)
    edge = await make_edge(engine)
    client = RawClient(edge)
    await until(lambda: engine.demands == [1])
    client.leave()
    await client.task
    assert engine.demands == [1, 0]
    assert edge.gateway.dispatchers["m"].num_waiting == 0


async def test_a_client_that_does_not_read_is_cut_and_slows_nobody(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine, slow_client_buffer_bytes=20_000)
    slow, quick = RawClient(edge), RawClient(edge)
    slow_id, quick_id = await request_id_at(engine, 0), await request_id_at(engine, 1)
    for request_id in (slow_id, quick_id):
        engine.say(request_id, "first")
    await until(lambda: slow.sent and quick.sent)
    slow.may_send.clear()
    for number in range(200):
        for request_id in (slow_id, quick_id):
            if request_id in engine.sinks:
                engine.say(request_id, f"{number},")
        await asyncio.sleep(0)
    await slow.task
    assert engine.aborts == [Abort(slow_id)]
    assert not slow.is_complete
    engine.say_ids(quick_id, [EOS_ID], FinishReason.STOP)
    await quick.task
    assert quick.text.endswith("data: [DONE]\n\n")
    assert '"199,"' in quick.text


async def test_what_waits_for_a_slow_client_is_counted_in_bytes(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine, slow_client_buffer_bytes=20_000)
    client = RawClient(edge)
    request_id = await request_id_at(engine)
    engine.say(request_id, "first")
    await until(lambda: client.sent)
    client.may_send.clear()
    engine.say(request_id, "taken by the write that hangs")
    await asyncio.sleep(0.01)
    engine.say(request_id, "漢" * 6_000)  # 18 kB
    await asyncio.sleep(0.01)
    assert not engine.aborts
    engine.say(request_id, "漢" * 600)
    await client.task
    assert engine.aborts == [Abort(request_id)]


async def test_one_big_step_is_not_a_slow_client(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine, slow_client_buffer_bytes=1_000))
    request_id = await request_id_at(engine)
    engine.say(request_id, "x" * 5_000)
    await asyncio.sleep(0.01)
    engine.say(request_id, "y" * 5_000, FinishReason.LENGTH)
    await client.task
    assert client.text.endswith("data: [DONE]\n\n")


async def test_what_piled_up_leaves_in_one_piece(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine))
    request_id = await request_id_at(engine)
    engine.say(request_id, "a")
    await until(lambda: "a" in client.text)
    num_messages = len(client.sent)
    for _ in range(50):
        engine.say(request_id, "x")
    engine.say_ids(request_id, [EOS_ID], FinishReason.STOP)
    await client.task
    assert len(client.sent) == num_messages + 1
    assert client.text.count('"x"') == 50


async def test_an_engine_lost_mid_stream_is_an_error_event_and_done(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine), n=2)
    request_id = await request_id_at(engine)
    engine.say(request_id, "half an ans")
    await until(lambda: "half" in client.text)
    engine.lose("killed")
    await client.task
    *_, error, done = client.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"] == {
        "message": "killed",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
        "request_id": request_id,
    }
    assert client.is_complete


async def test_an_engine_lost_after_a_stop_string_loses_nothing(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine), stop="END")
    request_id = await request_id_at(engine)
    engine.say(request_id, "answerEND")
    engine.lose()
    await client.task
    assert '"finish_reason":"stop"' in client.text
    assert "error" not in client.text


async def test_a_failure_before_the_first_token_keeps_its_status(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine, request_timeout_s=5)
    client = RawClient(edge)
    request_id = await request_id_at(engine)
    engine.say_ids(request_id, [], FinishReason.TIMEOUT)
    await client.task
    assert client.sent[0]["status"] == 504


async def test_idle_gaps_get_comments_only_after_the_headers(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine, sse_keep_alive_s=0.02))
    request_id = await request_id_at(engine)
    await asyncio.sleep(0.06)
    assert not client.sent
    engine.say(request_id, "a")
    await until(lambda: client.text.count(": keep-alive\n\n") >= 2)
    engine.say_ids(request_id, [EOS_ID], FinishReason.STOP)
    await client.task
    assert client.text.endswith("data: [DONE]\n\n")


async def test_half_a_character_is_not_sent(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine))
    request_id = await request_id_at(engine)
    first, *rest = ids_of("👋")
    engine.say_ids(request_id, [first])
    await until(lambda: "assistant" in client.text)
    assert '"content":"\ufffd' not in client.text
    engine.say_ids(request_id, rest)
    engine.say_ids(request_id, [EOS_ID], FinishReason.STOP)
    await client.task
    assert '"content":"👋"' in client.text


async def test_tokens_that_cannot_be_decoded_fail_their_request_only(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    broken, fine = RawClient(edge), RawClient(edge)
    broken_id, fine_id = await request_id_at(engine, 0), await request_id_at(engine, 1)
    engine.sinks[broken_id](TokenDelta(broken_id, ["no id"]))  # type: ignore[list-item]
    await broken.task
    assert broken.sent[0]["status"] == 500
    assert engine.aborts == [Abort(broken_id)] * len(engine.aborts)
    engine.say(fine_id, "ok", FinishReason.LENGTH)
    await fine.task
    assert '"finish_reason":"length"' in fine.text


async def test_a_cancelled_handler_aborts_too(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    client = RawClient(await make_edge(engine))
    request_id = await request_id_at(engine)
    client.task.cancel()
    await asyncio.wait((client.task,))
    assert client.task.cancelled()
    assert engine.aborts == [Abort(request_id)]
