"""``POST /tokenize`` and ``POST /detokenize``: what a prompt costs, without generating anything."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.gateway import Gateway
from app.record import record_of
from app.requests.body import parse_json_object, read_body
from app.requests.border import unsupported
from app.requests.sampling import check_token_ids
from app.requests.tokenize_request import (
    DetokenizeRequest,
    TokenizeRequest,
    parse_detokenize_request,
    parse_tokenize_request,
)
from app.text.tokenization import ModelTokenizer


class TokenizeRoute:
    """An ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record_of(scope).route = "/tokenize"
        body = await read_body(scope, receive, self._gateway.config.max_body_bytes)
        request = parse_tokenize_request(parse_json_object(body))
        tokenizer = await _tokenizer_of(self._gateway, request.model, scope)
        is_long = self._gateway.config.tokenize_off_loop_chars < len(body) or tokenizer.is_slow
        content = await _run(partial(_tokenize, request, tokenizer), is_long=is_long)
        await Response(content, media_type="application/json")(scope, receive, send)


class DetokenizeRoute:
    """An ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record_of(scope).route = "/detokenize"
        body = await read_body(scope, receive, self._gateway.config.max_body_bytes)
        request = parse_detokenize_request(parse_json_object(body))
        tokenizer = await _tokenizer_of(self._gateway, request.model, scope)
        is_long = self._gateway.config.tokenize_off_loop_chars < len(body)
        content = await _run(partial(_detokenize, request, tokenizer), is_long=is_long)
        await Response(content, media_type="application/json")(scope, receive, send)


async def _tokenizer_of(gateway: Gateway, model: str, scope: Scope) -> ModelTokenizer:
    dispatcher = gateway.dispatcher_of(model)
    record_of(scope).model = dispatcher.model
    return await gateway.tokenizers.get(await dispatcher.ready_card())


async def _run(work: Callable[[], bytes], *, is_long: bool) -> bytes:
    return await asyncio.to_thread(work) if is_long else work()


def _tokenize(request: TokenizeRequest, tokenizer: ModelTokenizer) -> bytes:
    token_ids = _token_ids(request, tokenizer)
    answer: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": tokenizer.card.max_model_len,
        "tokens": token_ids,
        "token_strs": None,
    }
    if request.return_token_strs:
        answer["token_strs"] = [tokenizer.token_name(token_id) for token_id in token_ids]
    return orjson.dumps(answer)


def _token_ids(request: TokenizeRequest, tokenizer: ModelTokenizer) -> list[int]:
    if request.messages is None:
        return tokenizer.encode_text(
            request.prompt or "", add_special_tokens=request.adds_special_tokens
        )
    if request.adds_special_tokens:
        raise unsupported("add_special_tokens", "the chat template writes them")
    return tokenizer.encode_chat(
        [message.for_template() for message in request.messages],
        tools=request.template_tools(),
        template_kwargs=request.template_kwargs(),
        add_generation_prompt=request.adds_generation_prompt,
        continue_final_message=request.continues_final_message,
    )


def _detokenize(request: DetokenizeRequest, tokenizer: ModelTokenizer) -> bytes:
    check_token_ids(request.tokens, tokenizer.card, param="tokens")
    return orjson.dumps({"prompt": tokenizer.decode_prompt(request.tokens)})
