"""``POST /v1/chat/completions``: one request from its body to its last byte.

Everything that can refuse a request (parsing, template, tokenizing, queueing, the first step of the
engine) happens before the status is sent, so that failures keep their status code.
"""

import asyncio
import time
from functools import partial

import orjson
from starlette.types import Receive, Scope, Send

from app.body import parse_json_object, read_body
from app.chat_request import ChatRequest, parse_chat_request
from app.chat_stream import ChatStream
from app.client_watch import Gone, run_while_connected
from app.dispatch import Dispatcher
from app.errors import ModelLoadingError
from app.gateway import Gateway
from app.generation import Generation
from app.openai_objects import chat_completion_object
from app.queue import Job
from app.record import RequestRecord, record_of
from app.sampling import check_can_fit, sampling_params
from app.sse import ChatEvents
from app.tokenization import ModelTokenizer, Prompt
from engine.messages import ModelCard

_TIMEOUT_GRACE_S = 2.0
"""The engine ends a request that runs out of time; the gateway does if the engine does not."""


class ChatCompletions:
    """The route, as an ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        record.route = "/v1/chat/completions"
        body = await read_body(scope, receive, self._gateway.config.max_body_bytes)
        request = parse_chat_request(parse_json_object(body))
        record.is_stream = bool(request.stream)
        is_long = len(body) > self._gateway.config.tokenize_off_loop_chars
        await run_while_connected(
            receive, partial(self._answer, request, record, send, is_long=is_long)
        )

    async def _answer(
        self, request: ChatRequest, record: RequestRecord, send: Send, gone: Gone, *, is_long: bool
    ) -> None:
        dispatcher = self._gateway.dispatcher_of(request.model)
        record.model = dispatcher.model
        card = dispatcher.card
        if card is None:
            raise ModelLoadingError(dispatcher.model)
        tokenizer = await self._gateway.tokenizers.get(card)
        prompt = await _tokenize(request, tokenizer, card, is_long=is_long)
        record.num_prompt_tokens = len(prompt.token_ids)
        sampling = sampling_params(request, len(prompt.token_ids), card)
        deadline_s = record.started_s + self._gateway.config.request_timeout_s
        generation = Generation(
            num_prompt_tokens=len(prompt.token_ids),
            detokenizer=tokenizer.create_detokenizer(),
            stops=request.stops,
            stop_token_ids=frozenset(sampling.stop_token_ids),
            deadline_s=deadline_s + _TIMEOUT_GRACE_S,
            abort=partial(dispatcher.abort, record.request_id),
        )
        job = Job(
            request_id=record.request_id,
            prompt=prompt,
            sampling=sampling,
            answer=generation,
            arrived_s=record.started_s,
            deadline_s=deadline_s,
        )
        dispatcher.enqueue(job)
        try:
            await _wait_for_first_token(generation, record)
            if request.stream:
                await self._stream(request, record, generation, send, gone)
            else:
                await _send_whole(record, generation, send)
        finally:
            _note(record, generation, job, dispatcher)

    async def _stream(
        self,
        request: ChatRequest,
        record: RequestRecord,
        generation: Generation,
        send: Send,
        gone: Gone,
    ) -> None:
        assert record.model is not None
        events = ChatEvents(
            completion_id=record.request_id,
            created_s=int(time.time()),
            model=record.model,
            includes_usage=request.includes_usage,
        )

        def cut() -> None:
            record.error = "slow_client"
            if not gone.done():
                gone.set_result(None)

        config = self._gateway.config
        stream = ChatStream(
            generation, events, send, max_backlog_bytes=config.slow_client_buffer_bytes, cut=cut
        )
        await stream.run(config.sse_keep_alive_s)


async def _tokenize(
    request: ChatRequest, tokenizer: ModelTokenizer, card: ModelCard, *, is_long: bool
) -> Prompt:
    messages = [message.for_template() for message in request.messages]
    check_can_fit(tokenizer.min_num_tokens(messages), card)
    if is_long:
        return await asyncio.to_thread(tokenizer.prompt, messages)
    return tokenizer.prompt(messages)


async def _wait_for_first_token(generation: Generation, record: RequestRecord) -> None:
    while not generation.num_tokens and generation.finish is None:
        await generation.wait()
        if generation.error is not None:
            raise generation.error
    record.ttft_s = record.elapsed_s


async def _send_whole(record: RequestRecord, generation: Generation, send: Send) -> None:
    while generation.finish is None:
        await generation.wait()
        if generation.error is not None:
            raise generation.error
    assert record.model is not None
    body = chat_completion_object(
        completion_id=record.request_id,
        created_s=int(time.time()),
        model=record.model,
        text="".join(generation.take()),
        finish_reason=generation.finish.reason,
        usage=generation.finish.usage,
    )
    content = orjson.dumps(body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def _note(record: RequestRecord, generation: Generation, job: Job, dispatcher: Dispatcher) -> None:
    """The end, however it came: the engine stops, and the record learns the counts."""
    dispatcher.cancel(record.request_id)
    usage = generation.usage
    record.num_cached_tokens = usage.cached_tokens
    record.num_completion_tokens = usage.completion_tokens
    record.engine_id = job.engine_id
    record.num_attempts = job.num_attempts
    if job.submitted_s is not None:
        record.queue_wait_s = job.submitted_s - job.queued_s
    if generation.num_tokens:
        record.last_token_s = record.elapsed_s
    if generation.finish is not None:
        record.finish_reason = generation.finish.reason
    if generation.error is not None:
        record.error = generation.error.code
