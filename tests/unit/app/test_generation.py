"""One answer as its deltas come."""

import time

import pytest

from app.detokenizer import create_detokenizer_factory
from app.generation import Generation
from engine.messages import FinishReason, TokenDelta, Usage
from tests.unit.app.fakes import EOS_ID, TOKENIZER, ids_of

create_detokenizer = create_detokenizer_factory(TOKENIZER)


def generation(
    *stops: str, aborts: list[int | None] | None = None, deadline_s: float | None = None
) -> Generation:
    return Generation(
        num_prompt_tokens=10,
        detokenizer=create_detokenizer(),
        stops=stops,
        stop_token_ids=frozenset({EOS_ID, *ids_of("!")}),
        deadline_s=time.monotonic() + 60 if deadline_s is None else deadline_s,
        abort=([] if aborts is None else aborts).append,
    )


def delta(
    text: str,
    finish: FinishReason | None = None,
    *,
    extra: tuple[int, ...] = (),
    num_completion_tokens: int | None = None,
) -> TokenDelta:
    usage = None if num_completion_tokens is None else Usage(10, 0, num_completion_tokens)
    return TokenDelta("r", [*ids_of(text), *extra], finish_reason=finish, usage=usage)


def test_the_stop_token_is_counted_and_not_shown_even_if_it_is_text() -> None:
    answer = generation()
    answer.on_delta(delta("ab!", FinishReason.STOP, num_completion_tokens=3))
    assert answer.take() == ["ab"]
    assert answer.finish is not None
    assert answer.finish.usage.completion_tokens == 3


def test_a_stop_token_that_did_not_stop_is_text() -> None:
    answer = generation()
    answer.on_delta(delta("a!b", FinishReason.LENGTH))
    assert answer.take() == ["a!b"]


def test_a_match_names_its_token_once_and_later_tokens_show_nothing() -> None:
    aborts: list[int | None] = []
    answer = generation("cd", aborts=aborts)
    answer.on_delta(delta("abc"))
    answer.on_delta(delta("defg"))
    answer.on_delta(delta("hcd"))
    answer.on_delta(delta("", FinishReason.STOP, num_completion_tokens=4))
    assert answer.take() == ["ab"]
    assert aborts == [4]
    assert answer.finish is not None
    assert answer.finish.reason == "stop"


def test_tokens_after_a_match_in_the_last_delta_are_overrun() -> None:
    aborts: list[int | None] = []
    answer = generation("c", aborts=aborts)
    answer.on_delta(delta("abcde", FinishReason.LENGTH, num_completion_tokens=5))
    assert answer.take() == ["ab"]
    assert answer.finish is not None
    assert answer.finish.reason == "stop"
    assert (answer.finish.usage.completion_tokens, answer.finish.usage.overrun_tokens) == (3, 2)
    assert not aborts, "the request has ended already"


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_partial_match_is_released_at_the_end(finish: FinishReason) -> None:
    answer = generation("cde")
    answer.on_delta(delta("abcd"))
    assert answer.take() == ["ab"]
    answer.on_delta(delta("", finish))
    assert answer.take() == ["cd"]


def test_a_character_that_the_end_cuts_is_flushed() -> None:
    answer = generation()
    answer.on_delta(TokenDelta("r", ids_of("a👋")[:-1], finish_reason=FinishReason.LENGTH))
    assert answer.take() == ["a\ufffd"]


def test_a_stop_string_that_the_flush_completes_keeps_every_token() -> None:
    answer = generation("\ufffd")
    cut = ids_of("ab👋")[:-1]
    answer.on_delta(delta("x"))
    answer.on_delta(TokenDelta("r", cut, FinishReason.LENGTH, usage=Usage(10, 0, 1 + len(cut))))
    assert answer.take() == ["x", "ab"]
    assert answer.finish is not None
    assert answer.finish.reason == "stop"
    assert answer.finish.usage == Usage(10, 0, 1 + len(cut))


def test_without_the_engines_counts_what_came_is_counted() -> None:
    answer = generation()
    answer.on_delta(delta("abc"))
    assert answer.usage == Usage(10, 0, 3)


async def test_the_deadline_fails_the_answer_whatever_the_engine_does() -> None:
    answer = generation(deadline_s=time.monotonic() + 0.02)
    assert await answer.wait()
    assert answer.error is not None
    assert answer.error.status == 504


async def test_a_wait_that_brings_nothing_says_so() -> None:
    answer = generation()
    assert not await answer.wait(0.01)
    answer.on_delta(delta("a"))
    assert await answer.wait(0.01)
    assert not await answer.wait(0.01)
