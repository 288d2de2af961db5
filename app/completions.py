"""``POST /v1/completions``: from the body to what the engine is told, and the answer."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from app.answers.answer import AskedPrompt, EchoMaker
from app.answers.answer_run import AnswerRun, PromptRun
from app.answers.completion_events import CompletionEvents
from app.answers.echo import create_echo
from app.answers.logprobs import (
    MAX_ANSWER_BYTES,
    MAX_BYTES_ON_LOOP,
    LogprobFormat,
    num_memory_bytes,
)
from app.answers.openai_objects import AnswerHead, completion_object
from app.answers.text_rules import text_rules
from app.answers.whole_answer import Choice
from app.client_watch import Gone, run_while_connected
from app.gateway import Gateway
from app.prompts import completion_prompt
from app.record import RequestRecord, record_of
from app.requests.answer_options import AnswerOptions
from app.requests.body import parse_json_object, read_body
from app.requests.border import invalid
from app.requests.completion_request import CompletionRequest, parse_completion_request
from app.requests.sampling import sampling_params
from app.requests.service_class import choose_class
from app.requests.session import session_of
from app.text.tokenization import ModelTokenizer, Prompt
from engine.messages import ModelCard, Usage

Headers = Sequence[tuple[bytes, bytes]]


class Completions:
    """The route, as an ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        record.route = "/v1/completions"
        config = self._gateway.config
        body = await read_body(scope, receive, config.max_body_bytes)
        request = parse_completion_request(parse_json_object(body), max_fanout=config.max_fanout)
        record.is_stream = bool(request.stream)
        record.service_class, record.service_tier = choose_class(
            request.service_tier, scope["headers"], config.default_class
        )
        is_long = len(body) > config.tokenize_off_loop_chars
        await run_while_connected(
            receive,
            partial(self._answer, request, scope["headers"], record, send, is_long=is_long),
        )

    async def _answer(
        self,
        request: CompletionRequest,
        headers: Headers,
        record: RequestRecord,
        send: Send,
        gone: Gone,
        *,
        is_long: bool,
    ) -> None:
        dispatcher = self._gateway.dispatcher_of(request.model)
        record.model = dispatcher.model
        card = await dispatcher.card_for_answer()
        tokenizer = await self._gateway.tokenizers.get(card)
        options = request.options()
        build = partial(_prompt_runs, request, headers, options, tokenizer, card, record.request_id)
        begun_s = time.monotonic()
        runs = await asyncio.to_thread(build) if is_long else build()
        record.note_tokenized(begun_s)
        run = AnswerRun(
            record,
            runs,
            options,
            _CompletionShape(options, tokenizer, [run.prompt for run in runs]),
            dispatcher=dispatcher,
            config=self._gateway.config,
            gaps=self._gateway.metrics.gaps_of(dispatcher.model),
        )
        await run.run(send, gone)


class _CompletionShape:
    """Implements ``app.answers.answer_run.AnswerShape``."""

    def __init__(
        self, options: AnswerOptions, tokenizer: ModelTokenizer, prompts: Sequence[Prompt]
    ) -> None:
        self._num_choices = len(prompts) * options.num_choices
        self._includes_usage = options.includes_usage
        num_top = options.num_top_logprobs
        self._logprobs = None if num_top is None else LogprobFormat(tokenizer.token_text, num_top)
        self._prompt_token_ids = (
            [prompt.token_ids for prompt in prompts for _ in range(options.num_choices)]
            if options.returns_token_ids
            else None
        )

    def events(self, head: AnswerHead) -> CompletionEvents:
        return CompletionEvents(
            head,
            num_choices=self._num_choices,
            includes_usage=self._includes_usage,
            logprobs=self._logprobs,
            prompt_token_ids=self._prompt_token_ids,
        )

    def whole(self, head: AnswerHead, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return completion_object(
            head, choices, usage, logprobs=self._logprobs, prompt_token_ids=self._prompt_token_ids
        )


def _prompt_runs(
    request: CompletionRequest,
    headers: Headers,
    options: AnswerOptions,
    tokenizer: ModelTokenizer,
    card: ModelCard,
    request_id: str,
) -> list[PromptRun]:
    """Tokenizes; takes about 1 ms per 4,000 characters."""
    prompts = request.prompts()
    runs = [
        _prompt_run(
            request,
            headers,
            options,
            tokenizer,
            card,
            prompt,
            request_id if len(prompts) == 1 else f"{request_id}-{position}",
        )
        for position, prompt in enumerate(prompts)
    ]
    num_tokens = sum(len(run.prompt.token_ids) for run in runs)
    _check_prompt_logprobs(request, num_tokens * request.num_samples)
    return runs


def _prompt_run(
    request: CompletionRequest,
    headers: Headers,
    options: AnswerOptions,
    tokenizer: ModelTokenizer,
    card: ModelCard,
    asked: str | list[int],
    request_id: str,
) -> PromptRun:
    prompt = completion_prompt(request, tokenizer, card, asked)
    sampling = sampling_params(request, len(prompt.token_ids), card)
    rules = text_rules(options, sampling, tokenizer, context_ids=prompt.token_ids)
    return PromptRun(
        AskedPrompt(
            request_id=request_id,
            num_tokens=len(prompt.token_ids),
            rules=rules,
            echo=_echo(request, tokenizer, asked, prompt) if request.echoes_prompt else None,
            # Nothing says how likely a prompt's first token was, nor hence one of a single token.
            has_logprobs=sampling.num_prompt_logprobs is not None and len(prompt.token_ids) > 1,
        ),
        prompt,
        sampling,
        session_of(request, headers, prompt.index_keys[:1]),
    )


def _check_prompt_logprobs(request: CompletionRequest, num_tokens: int) -> None:
    """They come at once: a stream encodes them on the event loop.

    ``num_tokens``: of all prompts, as often as they are shown.
    """
    num_top = request.num_prompt_logprobs
    if num_top is None:
        return
    num_bytes = num_memory_bytes(num_tokens, num_top * num_tokens)
    asked = f"log probabilities of {num_tokens} prompt tokens with {num_top} alternatives each"
    if num_bytes > MAX_ANSWER_BYTES:
        raise invalid("logprobs", f"{asked} are too many; send fewer or shorter prompts")
    if request.stream and num_bytes > MAX_BYTES_ON_LOOP:
        raise invalid("stream", f"{asked} are too many for a stream; ask without stream=true")


def _echo(
    request: CompletionRequest, tokenizer: ModelTokenizer, asked: str | list[int], prompt: Prompt
) -> EchoMaker:
    return create_echo(
        asked,
        prompt.token_ids,
        tokenizer.create_detokenizer(),
        tokenizer.token_text,
        has_logprobs=request.num_prompt_logprobs is not None,
    )
