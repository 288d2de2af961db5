"""Several samples and prompts as one answer: its usage, its end and its failures."""

import asyncio
import time
from typing import Any

import pytest

from app.answers.answer import Answer, AskedPrompt
from app.answers.generation import Piece, TextRules
from app.answers.whole_answer import WholeAnswer
from app.errors import EngineError, InvalidRequestError
from app.text.detokenizer import create_detokenizer_factory
from engine.messages import FinishReason, TokenDelta, TokenLogprobs, Usage
from tests.unit.app.fakes import TOKENIZER, fake_logprobs, ids_of

create_detokenizer = create_detokenizer_factory(TOKENIZER)
TOKEN_BYTES = {token_id: bytes([byte]) for byte in b"abcde" for token_id in ids_of(chr(byte))}


class Engines:
    """Remembers; ``is_busy`` says whether a cancelled request has yet to end."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.aborted: list[tuple[str, int | None, int | None]] = []
        self.is_busy = False

    def abort(self, request_id: str, num_kept_tokens: int | None, index: int | None) -> None:
        self.aborted.append((request_id, num_kept_tokens, index))

    def cancel(self, request_id: str) -> bool:
        self.cancelled.append(request_id)
        return self.is_busy


def make_answer(
    num_prompts: int = 1,
    num_samples: int = 1,
    *,
    engines: Engines | None = None,
    is_stream: bool = False,
    deadline_s: float = 1e9,
    **rules: Any,
) -> Answer:
    text_rules = TextRules(create_detokenizer, **rules)
    answer = Answer(
        [AskedPrompt(f"r-{number}", 10, text_rules) for number in range(num_prompts)],
        engines or Engines(),
        num_samples=num_samples,
        is_stream=is_stream,
        deadline_s=deadline_s,
    )
    WholeAnswer(answer)
    return answer


def say(
    answer: Answer,
    text: str,
    finish: FinishReason | None = None,
    *,
    prompt: int = 0,
    index: int = 0,
    usage: Usage | None = None,
) -> None:
    delta = TokenDelta("r", ids_of(text), finish, usage=usage, index=index)
    answer.prompts[prompt].on_delta(delta)


def test_a_prompt_counts_once_and_every_sample_in_full() -> None:
    answer = make_answer(num_prompts=2, num_samples=2)
    for prompt in range(2):
        for index in range(2):
            usage = Usage(10, 4 + prompt, 1 + index)
            say(
                answer,
                "x" * (1 + index),
                FinishReason.LENGTH,
                prompt=prompt,
                index=index,
                usage=usage,
            )
    assert answer.is_finished
    assert answer.usage == Usage(prompt_tokens=20, cached_tokens=9, completion_tokens=6)


def test_one_failing_prompt_ends_all_others_at_once() -> None:
    engines = Engines()
    answer = make_answer(num_prompts=3, engines=engines)
    say(answer, "x", prompt=0)
    answer.prompts[1].fail(EngineError("it broke"))
    assert answer.error is not None
    assert engines.cancelled == ["r-0", "r-1", "r-2"]
    say(answer, "y", FinishReason.STOP, prompt=0)
    assert answer.error.message == "it broke"


def test_a_stop_string_ends_its_sample_only() -> None:
    engines = Engines()
    answer = make_answer(num_samples=2, engines=engines, stops=("ab",))
    say(answer, "xab", index=1)
    say(answer, "ab", index=1)
    assert engines.aborted == [("r-0", 3, 1)]
    assert not engines.cancelled


@pytest.mark.parametrize("is_stream", [False, True])
def test_only_what_was_not_shown_may_start_over(is_stream: bool) -> None:
    answer = make_answer(num_prompts=2, is_stream=is_stream)
    say(answer, "x")
    first, second = answer.prompts
    assert first.can_restart is not is_stream
    assert second.can_restart


def test_text_that_is_complete_needs_no_restart() -> None:
    answer = make_answer(num_samples=2, stops=("b",))
    say(answer, "ab")
    assert answer.prompts[0].can_restart
    say(answer, "b", index=1)
    assert not answer.prompts[0].can_restart


def test_a_restart_forgets_text_and_counts() -> None:
    answer = make_answer(stops=("b",))
    sink = answer.sink
    assert isinstance(sink, WholeAnswer)
    say(answer, "xa")
    answer.prompts[0].restart()
    say(answer, "yb", FinishReason.LENGTH)
    (choice,) = sink.choices(1)
    assert choice.text == "y"
    assert answer.usage.completion_tokens == 2


def test_the_likeliest_samples_are_chosen_by_their_mean() -> None:
    answer = make_answer(num_prompts=2, num_samples=3)
    sink = answer.sink
    assert isinstance(sink, WholeAnswer)
    for prompt, logprobs in enumerate([(-3.0, -1.0, -2.0), (-1.0, -2.0, -3.0)]):
        for index, logprob in enumerate(logprobs):
            tokens = ids_of("ab"[:2] if index else "c")
            answer.prompts[prompt].on_delta(
                TokenDelta(
                    "r",
                    tokens,
                    FinishReason.LENGTH,
                    index=index,
                    logprobs=[TokenLogprobs(logprob, [], [])] * len(tokens),
                )
            )
    choices = sink.choices(2)
    assert [(choice.index, choice.text) for choice in choices] == [
        (0, "ab"),
        (1, "ab"),
        (2, "c"),
        (3, "ab"),
    ]


def test_the_prompt_is_shown_first_even_if_another_sample_is_earlier() -> None:
    asked = AskedPrompt(
        "r",
        3,
        TextRules(create_detokenizer),
        echo=lambda logprobs: Piece(f"<{len(logprobs)}>", [], []),
        has_logprobs=True,
    )
    answer = Answer([asked], Engines(), num_samples=2, is_stream=False, deadline_s=1e9)
    sink = WholeAnswer(answer)
    (prompt,) = answer.prompts
    prompt.on_delta(TokenDelta("r", ids_of("b"), FinishReason.LENGTH, index=1))
    assert not answer.has_begun
    logprobs = [fake_logprobs(1, 0)] * 2
    prompt.on_delta(TokenDelta("r", ids_of("a"), FinishReason.LENGTH, prompt_logprobs=logprobs))
    assert [choice.text for choice in sink.choices(2)] == ["<2>a", "<2>b"]


def test_a_prompt_whose_log_probabilities_never_come_is_an_error() -> None:
    asked = AskedPrompt(
        "r", 3, TextRules(create_detokenizer), echo=lambda _: Piece("", [], []), has_logprobs=True
    )
    answer = Answer([asked], Engines(), num_samples=1, is_stream=False, deadline_s=1e9)
    WholeAnswer(answer)
    say(answer, "a", FinishReason.LENGTH)
    assert answer.error is not None
    assert answer.error.status == 500


async def test_the_deadline_fails_the_answer_whatever_the_engine_does() -> None:
    engines = Engines()
    answer = make_answer(engines=engines, deadline_s=time.monotonic() + 0.02)
    assert await answer.wait()
    assert answer.error is not None
    assert answer.error.status == 504
    assert engines.cancelled


async def test_a_wait_that_brings_nothing_says_so() -> None:
    answer = make_answer()
    assert not await answer.wait(0.01)
    say(answer, "a")
    assert await answer.wait(0.01)
    assert not await answer.wait(0.01)


async def test_the_last_counts_are_waited_for_but_not_long() -> None:
    engines = Engines()
    engines.is_busy = True
    answer = make_answer(num_samples=2, engines=engines)
    say(answer, "ab")
    answer.cancel()
    settling = asyncio.create_task(answer.settle(5))
    say(answer, "", FinishReason.ABORT, index=1, usage=Usage(10, 0, 1))
    await asyncio.sleep(0)
    assert not settling.done()
    say(answer, "", FinishReason.ABORT, usage=Usage(10, 0, 7))
    await asyncio.wait_for(settling, 1)
    assert answer.usage.completion_tokens == 8
    assert answer.error is None, "nobody is left to tell"
    other = make_answer(engines=engines)
    other.cancel()
    started_s = time.monotonic()
    await other.settle(0.02)
    assert time.monotonic() - started_s < 1


def test_a_whole_answer_with_too_many_log_probabilities_fails_and_stops_the_engine() -> None:
    engines = Engines()
    answer = make_answer(
        num_samples=2, engines=engines, bytes_of=lambda token_id: TOKEN_BYTES[token_id]
    )
    WholeAnswer(answer, max_logprob_bytes=20_000)
    logprobs = [fake_logprobs(token_id, 20) for token_id in ids_of("abcde")]
    for index in (0, 1):
        assert answer.error is None
        answer.prompts[0].on_delta(
            TokenDelta("r-0", ids_of("abcde"), logprobs=logprobs, index=index)
        )
    answer.prompts[0].on_delta(TokenDelta("r-0", ids_of("abcde"), logprobs=logprobs))
    assert isinstance(answer.error, InvalidRequestError)
    assert answer.error.param == "logprobs"
    assert engines.cancelled == ["r-0"]


async def test_the_time_per_token_is_the_engines_whatever_follows() -> None:
    answer = make_answer(num_samples=2)
    say(answer, "ab")
    prompt = answer.prompts[0]
    assert prompt.span_s == 0
    await asyncio.sleep(0.02)
    say(answer, "c", FinishReason.LENGTH)
    tpot_s = prompt.tpot_s(prompt.span_s)
    assert tpot_s is not None
    assert tpot_s >= 0.01
    await asyncio.sleep(0.01)
    assert prompt.tpot_s(prompt.span_s) == tpot_s


async def test_one_token_has_no_time_per_token() -> None:
    answer = make_answer()
    say(answer, "a", FinishReason.LENGTH)
    assert answer.prompts[0].tpot_s(answer.prompts[0].span_s) is None
