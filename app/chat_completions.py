"""``POST /v1/chat/completions``: from the body to what the engine is told, and the answer."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from app.answers.answer import AskedPrompt
from app.answers.answer_run import AnswerRun, PromptRun
from app.answers.chat_events import ChatEvents
from app.answers.logprobs import LogprobFormat
from app.answers.openai_objects import AnswerHead, chat_completion_object
from app.answers.text_rules import text_rules
from app.answers.whole_answer import Choice
from app.client_watch import Gone, run_while_connected
from app.gateway import Gateway
from app.prompts import chat_prompt
from app.record import RequestRecord, record_of
from app.requests.answer_options import AnswerOptions
from app.requests.body import parse_json_object, read_body
from app.requests.chat_request import ChatRequest, parse_chat_request
from app.requests.sampling import sampling_params
from app.requests.service_class import choose_class
from app.requests.session import Session, beginning_of, session_of
from app.text.tokenization import ModelTokenizer, Prompt
from engine.messages import Usage


class ChatCompletions:
    """The route, as an ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        record.route = "/v1/chat/completions"
        config = self._gateway.config
        body = await read_body(scope, receive, config.max_body_bytes)
        request = parse_chat_request(parse_json_object(body), max_fanout=config.max_fanout)
        record.is_stream = bool(request.stream)
        record.service_class, record.service_tier = choose_class(
            request.service_tier, scope["headers"], config.default_class
        )
        beginning = beginning_of(message.for_template() for message in request.messages)
        session = session_of(request, scope["headers"], beginning)
        is_long = len(body) > config.tokenize_off_loop_chars
        await run_while_connected(
            receive, partial(self._answer, request, session, record, send, is_long=is_long)
        )

    async def _answer(
        self,
        request: ChatRequest,
        session: Session,
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
        begun_s = time.monotonic()
        prompt = await chat_prompt(request, tokenizer, card, is_long=is_long)
        record.note_tokenized(begun_s)
        sampling = sampling_params(request, len(prompt.token_ids), card)
        options = request.options()
        asked = AskedPrompt(
            request_id=record.request_id,
            num_tokens=len(prompt.token_ids),
            rules=text_rules(
                options,
                sampling,
                tokenizer,
                context_ids=prompt.token_ids if request.continues_final_message else (),
            ),
        )
        run = AnswerRun(
            record,
            [PromptRun(asked, prompt, sampling, session)],
            options,
            _ChatShape(options, tokenizer, prompt),
            dispatcher=dispatcher,
            config=self._gateway.config,
            gaps=self._gateway.metrics.gaps_of(dispatcher.model),
        )
        await run.run(send, gone)


class _ChatShape:
    """Implements ``app.answers.answer_run.AnswerShape``."""

    def __init__(self, options: AnswerOptions, tokenizer: ModelTokenizer, prompt: Prompt) -> None:
        self._options = options
        num_top = options.num_top_logprobs
        self._logprobs = None if num_top is None else LogprobFormat(tokenizer.token_text, num_top)
        self._prompt_token_ids = prompt.token_ids if options.returns_token_ids else None

    def events(self, head: AnswerHead) -> ChatEvents:
        return ChatEvents(
            head,
            num_choices=self._options.num_choices,
            includes_usage=self._options.includes_usage,
            logprobs=self._logprobs,
            prompt_token_ids=self._prompt_token_ids,
        )

    def whole(self, head: AnswerHead, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return chat_completion_object(
            head,
            choices,
            usage,
            logprobs=self._logprobs,
            prompt_token_ids=self._prompt_token_ids,
        )
