"""One answer whose tokens a test chooses, shown both ways: as a whole and as a stream."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import Message

from app.answers.answer import Answer, AskedPrompt
from app.answers.answer_stream import AnswerStream
from app.answers.chat_events import ChatEvents
from app.answers.completion_events import CompletionEvents
from app.answers.echo import create_echo
from app.answers.logprobs import LogprobFormat
from app.answers.openai_objects import AnswerHead, chat_completion_object, completion_object
from app.answers.text_rules import text_rules
from app.answers.whole_answer import WholeAnswer
from app.answers.write_times import WriteTimes
from app.bucket_counts import BucketCounts
from app.requests.answer_options import AnswerOptions
from app.text.tokenization import ModelTokenizer
from engine.messages import FinishReason, SamplingParams, TokenDelta, Usage
from tests.unit.app.fakes import EOS_ID, fake_logprobs, ids_of, make_card

TOKENIZER = ModelTokenizer(make_card())
HEAD = AnswerHead("id", 1, "m")
PROMPT = "Grüße 👋 "
PROMPT_IDS = ids_of(PROMPT)


@dataclass(frozen=True, slots=True)
class Script:
    """What an engine says: each sample's tokens, and how they are cut into deltas."""

    samples: tuple[tuple[int, ...], ...]
    is_stopped: bool
    """By the stop token, else by the length."""
    cuts: tuple[tuple[int, ...], ...]
    """Per sample: where a delta ends, in tokens."""
    order: tuple[int, ...]
    """Picks the sample that speaks next."""


@dataclass(eq=False)
class Aborts:
    """The ``Engines`` of an answer that only listen."""

    heard: list[tuple[int | None, int | None]] = field(default_factory=list)

    def abort(self, request_id: str, num_kept_tokens: int | None, index: int | None) -> None:
        self.heard.append((index, num_kept_tokens))

    def cancel(self, request_id: str) -> bool:
        return False


def deltas_of(script: Script, options: AnswerOptions) -> list[TokenDelta]:
    num_top = options.num_top_logprobs
    queues: list[list[TokenDelta]] = []
    for index, (sample, cuts) in enumerate(zip(script.samples, script.cuts, strict=True)):
        ids = [*sample, EOS_ID] if script.is_stopped else list(sample)
        ends = [*sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
        queue = []
        for start, end in zip([0, *ends], ends, strict=False):
            part, is_last = ids[start:end], end == len(ids)
            reason = FinishReason.STOP if script.is_stopped else FinishReason.LENGTH
            queue.append(
                TokenDelta(
                    "r",
                    part,
                    reason if is_last else None,
                    Usage(len(PROMPT_IDS), 0, end) if is_last or not start else None,
                    index=index,
                    logprobs=None
                    if num_top is None
                    else [fake_logprobs(token_id, num_top) for token_id in part],
                    prompt_logprobs=[fake_logprobs(id_, num_top or 0) for id_ in PROMPT_IDS[1:]]
                    if options.echoes_prompt and num_top is not None and not start and not index
                    else None,
                )
            )
        queues.append(queue)
    deltas: list[TokenDelta] = []
    picks = iter(script.order)
    while remaining := [queue for queue in queues if queue]:
        deltas.append(remaining[next(picks, 0) % len(remaining)].pop(0))
    return deltas


def _answer(options: AnswerOptions) -> tuple[Answer, Aborts]:
    engines = Aborts()
    has_logprobs = options.num_top_logprobs is not None
    echo = create_echo(
        PROMPT,
        PROMPT_IDS,
        TOKENIZER.create_detokenizer(),
        TOKENIZER.token_text,
        has_logprobs=has_logprobs,
    )
    sampling = SamplingParams(max_tokens=100, stop_token_ids=(EOS_ID,))
    asked = AskedPrompt(
        "r",
        len(PROMPT_IDS),
        text_rules(options, sampling, TOKENIZER),
        echo=echo if options.echoes_prompt else None,
        has_logprobs=has_logprobs and options.echoes_prompt,
    )
    answer = Answer(
        [asked],
        engines,
        num_samples=options.num_samples,
        is_stream=options.is_stream,
        deadline_s=1e9,
    )
    return answer, engines


def _logprobs(options: AnswerOptions) -> LogprobFormat | None:
    num_top = options.num_top_logprobs
    return None if num_top is None else LogprobFormat(TOKENIZER.token_text, num_top)


def whole(script: Script, options: AnswerOptions, *, is_chat: bool) -> dict[str, Any]:
    """The JSON object."""
    answer, _ = _answer(options)
    collector = WholeAnswer(answer)
    for delta in deltas_of(script, options):
        answer.prompts[0].on_delta(delta)
    assert answer.error is None
    choices = collector.choices(options.num_choices)
    logprobs = _logprobs(options)
    if is_chat:
        ids = PROMPT_IDS if options.returns_token_ids else None
        body = chat_completion_object(
            HEAD, choices, answer.usage, logprobs=logprobs, prompt_token_ids=ids
        )
    else:
        lists = [PROMPT_IDS] * options.num_choices if options.returns_token_ids else None
        body = completion_object(
            HEAD, choices, answer.usage, logprobs=logprobs, prompt_token_ids=lists
        )
    parsed: dict[str, Any] = orjson.loads(orjson.dumps(body))
    return parsed


def streamed(script: Script, options: AnswerOptions, *, is_chat: bool) -> list[dict[str, Any]]:
    """The chunks."""
    answer, _ = _answer(options)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    fields: dict[str, Any] = {
        "num_choices": options.num_choices,
        "includes_usage": options.includes_usage,
        "logprobs": _logprobs(options),
    }
    lists = [PROMPT_IDS] * options.num_choices
    ids: Any = (PROMPT_IDS if is_chat else lists) if options.returns_token_ids else None
    create = ChatEvents if is_chat else CompletionEvents
    stream = AnswerStream(
        answer,
        create(HEAD, prompt_token_ids=ids, **fields),
        send,
        has_continuous_usage=options.has_continuous_usage,
        max_backlog_bytes=1 << 20,
        times=WriteTimes(options.num_samples, BucketCounts(())),
        cut=lambda: None,
    )
    for delta in deltas_of(script, options):
        answer.prompts[0].on_delta(delta)
    assert answer.error is None
    asyncio.run(stream.run(60))
    body = b"".join(message.get("body", b"") for message in sent)
    *events, done, rest = body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def aborts(script: Script, options: AnswerOptions) -> Sequence[tuple[int | None, int | None]]:
    """What the answer told the engine: sample and kept tokens."""
    answer, engines = _answer(options)
    WholeAnswer(answer)
    for delta in deltas_of(script, options):
        answer.prompts[0].on_delta(delta)
    return engines.heard
