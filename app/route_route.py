"""``POST /v1/route``: which engine a chat or text completion should go to. Generates nothing."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.gateway import Gateway
from app.prompts import chat_prompt, completion_prompt
from app.queue import Job
from app.record import RequestRecord, record_of
from app.requests.body import parse_json_object, read_body
from app.requests.border import invalid
from app.requests.chat_request import ChatRequest, parse_chat_request
from app.requests.completion_request import CompletionRequest, parse_completion_request
from app.requests.sampling import sampling_params
from app.requests.service_class import choose_class
from app.requests.session import affinity_of, beginning_of
from app.router import Route, RouteOption, Router
from app.text.tokenization import ModelTokenizer, Prompt
from engine.messages import ModelCard, TokenDelta

RoutedRequest = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class _NoAnswer:
    """Implements ``app.queue.Answer``: others get it."""

    is_missing_text = False
    can_restart = False

    def restart(self) -> None:
        raise AssertionError("nothing was sent")

    def on_delta(self, delta: TokenDelta) -> None:
        raise AssertionError("nothing was sent")

    def fail(self, error: Exception) -> None:
        raise AssertionError("nothing was sent")


class RouteRoute:
    """An ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        record.route = "/v1/route"
        config = self._gateway.config
        body = await read_body(scope, receive, config.max_body_bytes)
        request = parse_route_request(parse_json_object(body), max_fanout=config.max_fanout)
        record.service_class, record.service_tier = choose_class(
            request.service_tier, scope["headers"], config.default_class
        )
        dispatcher = self._gateway.dispatcher_of(request.model)
        record.model = dispatcher.model
        card = await dispatcher.ready_card()
        tokenizer = await self._gateway.tokenizers.get(card)
        begun_s = time.monotonic()
        prompt = await _prompt(
            request, tokenizer, card, is_long=len(body) > config.tokenize_off_loop_chars
        )
        record.note_tokenized(begun_s)
        job = _job(request, record, prompt, card)
        job.affinity = _affinity(request, scope, prompt)
        route = Router(dispatcher).route(job)
        record.engine_id = route.best.engine_id
        content = orjson.dumps(self._answer(record, len(prompt.token_ids), route))
        await Response(content, media_type="application/json")(scope, receive, send)

    def _answer(self, record: RequestRecord, num_tokens: int, route: Route) -> dict[str, Any]:
        assert record.model is not None, "it was set above"
        model = record.model

        def shown(option: RouteOption) -> dict[str, Any]:
            return {
                "engine_id": option.engine_id,
                "address": self._gateway.endpoint_of(model, option.engine_id),
                "predicted_cached_tokens": option.predicted_cached_tokens,
                "predicted_ttft_ms": round(option.predicted_ttft_s * 1000, 2),
            }

        return {
            "id": record.request_id,
            "object": "route",
            "model": model,
            "prompt_tokens": num_tokens,
            "source": route.source.value,
            **shown(route.best),
            "alternatives": [shown(option) for option in route.alternatives],
        }


def parse_route_request(body: Mapping[str, Any], *, max_fanout: int) -> RoutedRequest:
    """The body of a chat completion, or of a text completion with one prompt.

    Raises ``InvalidRequestError``.
    """
    if "messages" in body:
        return parse_chat_request(body, max_fanout=max_fanout)
    request = parse_completion_request(body, max_fanout=max_fanout)
    if len(request.prompts()) > 1:
        raise invalid("prompt", "only one prompt is routed at a time")
    return request


async def _prompt(
    request: RoutedRequest, tokenizer: ModelTokenizer, card: ModelCard, *, is_long: bool
) -> Prompt:
    if isinstance(request, ChatRequest):
        return await chat_prompt(request, tokenizer, card, is_long=is_long)
    build = partial(completion_prompt, request, tokenizer, card, request.prompts()[0])
    return await asyncio.to_thread(build) if is_long else build()


def _affinity(request: RoutedRequest, scope: Scope, prompt: Prompt) -> int | None:
    beginning = prompt.index_keys[:1]
    if isinstance(request, ChatRequest):
        beginning = beginning_of(message.for_template() for message in request.messages)
    return affinity_of(request, scope["headers"], beginning)


def _job(request: RoutedRequest, record: RequestRecord, prompt: Prompt, card: ModelCard) -> Job:
    assert record.service_class is not None, "it was set above"
    return Job(
        record.request_id,
        prompt,
        sampling_params(request, len(prompt.token_ids), card),
        _NoAnswer(),
        arrived_s=record.started_s,
        deadline_s=record.started_s,
        num_samples=request.num_samples,
        service_class=record.service_class,
    )
