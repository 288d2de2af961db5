"""``POST /v1/chat/completions``: one request from its body to its last byte.

Everything that can refuse a request (parsing, template, tokenizing, queueing, the first step of the
engine) happens before the status is sent, so that failures keep their status code.
"""

import asyncio
import secrets
import time
from functools import partial

import orjson
from starlette.types import Receive, Scope, Send

from app import sse
from app.body import parse_json_object, read_body
from app.chat_request import ChatRequest, parse_chat_request
from app.client_watch import Gone, run_while_connected
from app.dispatch import Dispatcher
from app.errors import ContextLengthError, ModelLoadingError, RequestTimeoutError
from app.gateway import Gateway
from app.generation import Generation
from app.openai_objects import chat_completion_object
from app.queue import Job
from app.record import RequestRecord, record_of
from engine.messages import ModelCard, SamplingParams

_TIMEOUT_GRACE_S = 2.0
"""The engine ends a request that runs out of time; the gateway itself only if the engine does
not.
"""


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
        work = partial(self._answer, request, record, send, is_long)
        await run_while_connected(receive, work)

    async def _answer(
        self, request: ChatRequest, record: RequestRecord, send: Send, is_long: bool, gone: Gone
    ) -> None:
        config = self._gateway.config
        dispatcher = self._gateway.dispatcher_of(request.model)
        record.model = dispatcher.model
        card = dispatcher.card
        if card is None:
            raise ModelLoadingError(dispatcher.model)
        tokenizer = await self._gateway.tokenizers.get(card)
        messages = [message.for_template() for message in request.messages]
        prompt = (
            await asyncio.to_thread(tokenizer.prompt, messages)
            if is_long
            else tokenizer.prompt(messages)
        )
        record.num_prompt_tokens = len(prompt.token_ids)
        sampling = _sampling(request, len(prompt.token_ids), card)
        generation = Generation(
            num_prompt_tokens=len(prompt.token_ids),
            detokenizer=tokenizer.create_detokenizer(),
            stops=request.stops,
            stop_token_ids=frozenset(sampling.stop_token_ids),
            abort=partial(dispatcher.abort, record.request_id),
        )
        job = Job(
            request_id=record.request_id,
            prompt=prompt,
            sampling=sampling,
            answer=generation,
            arrived_s=record.started_s,
            deadline_s=record.started_s + config.request_timeout_s,
        )
        dispatcher.enqueue(job)
        try:
            await _wait_for_first_step(generation, job, record)
            if request.stream:
                writer = _StreamWriter(request, record, generation, job, send)
                await writer.run(gone, config.slow_client_buffer_bytes, config.sse_keep_alive_s)
            else:
                await _send_whole(record, generation, job, send)
        finally:
            _note(record, generation, job, dispatcher)


def _sampling(request: ChatRequest, num_prompt_tokens: int, card: ModelCard) -> SamplingParams:
    """Raises ``ContextLengthError`` when prompt and answer can never fit."""
    num_pool_tokens = card.num_blocks * card.block_size_tokens
    limit = min(card.max_model_len, num_pool_tokens)
    num_free = limit - num_prompt_tokens
    num_asked = request.num_max_tokens
    if num_free < (num_asked or 1):
        fact = (
            f"This model's maximum context length is {limit} tokens"
            if limit == card.max_model_len
            else f"This model's maximum context length is {limit} tokens here (the size of its KV "
            f"cache; the model itself allows {card.max_model_len})"
        )
        asked = "" if num_asked is None else f" and {num_asked} for the answer"
        advice = (
            f"ask for at most {num_free} with '{request.max_tokens_param}' or shorten the messages"
            if num_free > 0
            else f"shorten the messages to less than {limit} tokens"
        )
        raise ContextLengthError(
            f"{fact}. However, you requested {num_prompt_tokens} tokens in the messages{asked}: "
            f"{advice}.",
            param="messages",
        )
    seed = secrets.randbits(64) if request.seed is None else request.seed % 2**64
    return SamplingParams(
        max_tokens=num_free if num_asked is None else num_asked,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=seed,
        stop_token_ids=() if request.ignore_eos else tuple(card.eos_token_ids),
    )


async def _wait_for_news(generation: Generation, job: Job, timeout_s: float) -> bool:
    """False after ``timeout_s``; raises ``RequestTimeoutError`` once the request is long
    overdue.
    """
    left_s = job.deadline_s + _TIMEOUT_GRACE_S - time.monotonic()
    has_news = await generation.wait(max(0.0, min(timeout_s, left_s)))
    if not has_news and left_s <= timeout_s:
        raise RequestTimeoutError("The request took longer than the server allows.")
    return has_news


async def _wait_for_first_step(generation: Generation, job: Job, record: RequestRecord) -> None:
    while not generation.num_tokens and generation.finish is None:
        await _wait_for_news(generation, job, float("inf"))
        if generation.error is not None:
            raise generation.error
    record.ttft_s = record.elapsed_s


async def _send_whole(record: RequestRecord, generation: Generation, job: Job, send: Send) -> None:
    while generation.finish is None:
        await _wait_for_news(generation, job, float("inf"))
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


class _StreamWriter:
    """Writes one answer as events; what came while the client was not reading leaves in one
    piece.
    """

    def __init__(
        self,
        request: ChatRequest,
        record: RequestRecord,
        generation: Generation,
        job: Job,
        send: Send,
    ) -> None:
        assert record.model is not None
        self._includes_usage = request.includes_usage
        self._generation = generation
        self._job = job
        self._send = send
        self._events = sse.ChatEvents(
            completion_id=record.request_id,
            created_s=int(time.time()),
            model=record.model,
            includes_usage=request.includes_usage,
        )

    async def run(self, gone: Gone, max_backlog_bytes: int, keep_alive_s: float) -> None:
        """From the status to ``[DONE]``; resolves ``gone`` when the client lets too much pile
        up.
        """
        self._generation.on_growth = partial(self._cut_if_slow, gone, max_backlog_bytes)
        await self._send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
        events = [self._events.role()]
        is_last = False
        while not is_last:
            events += map(self._events.text, self._generation.take())
            ending = self._ending()
            is_last = bool(ending)
            events += ending
            if events:
                body = b"".join(events)
                await self._send(
                    {"type": "http.response.body", "body": body, "more_body": not is_last}
                )
            events = []
            if not is_last:
                events = await self._wait(keep_alive_s)

    async def _wait(self, keep_alive_s: float) -> list[bytes]:
        try:
            has_news = await _wait_for_news(self._generation, self._job, keep_alive_s)
        except RequestTimeoutError as error:
            self._generation.fail(error)
            return []
        return [] if has_news else [sse.KEEP_ALIVE]

    def _ending(self) -> list[bytes]:
        finish, error = self._generation.finish, self._generation.error
        if error is not None:
            return [self._events.error(error), sse.DONE]
        if finish is None:
            return []
        usage = [self._events.usage(finish.usage)] if self._includes_usage else []
        return [self._events.finish(finish.reason), *usage, sse.DONE]

    def _cut_if_slow(self, gone: Gone, max_backlog_bytes: int) -> None:
        generation = self._generation
        overhead = generation.num_pending_pieces * self._events.event_overhead_bytes
        if generation.num_pending_chars + overhead > max_backlog_bytes and not gone.done():
            gone.set_result(None)


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
