"""One sample as its deltas come."""

import pytest

from app.answers.generation import Generation, TextRules
from app.text.detokenizer import create_detokenizer_factory
from engine.messages import FinishReason, TokenDelta, Usage
from tests.unit.app.fakes import EOS_ID, TOKENIZER, fake_logprobs, ids_of

create_detokenizer = create_detokenizer_factory(TOKENIZER)


def generation(*stops: str, includes_stop: bool = False, min_tokens: int = 0) -> Generation:
    rules = TextRules(
        create_detokenizer,
        stops=stops,
        includes_stop=includes_stop,
        stop_token_ids=frozenset({EOS_ID, *ids_of("!")}),
        min_tokens=min_tokens,
        collects_token_ids=True,
    )
    return Generation(rules, num_prompt_tokens=10)


def delta(
    text: str, finish: FinishReason | None = None, *, num_completion_tokens: int | None = None
) -> TokenDelta:
    usage = None if num_completion_tokens is None else Usage(10, 0, num_completion_tokens)
    return TokenDelta("r", ids_of(text), finish_reason=finish, usage=usage)


def texts(sample: Generation, *deltas: TokenDelta) -> list[str | None]:
    """What each delta brought."""
    pieces = [sample.push(delta) for delta in deltas]
    return [None if piece is None else piece.text for piece in pieces]


def test_the_stop_token_is_counted_and_not_shown_even_if_it_is_text() -> None:
    sample = generation()
    assert texts(sample, delta("ab!", FinishReason.STOP, num_completion_tokens=3)) == ["ab"]
    assert sample.finish == ("stop", Usage(10, 0, 3))


def test_a_stop_token_that_did_not_stop_is_text() -> None:
    assert texts(generation(), delta("a!b", FinishReason.LENGTH)) == ["a!b"]


def test_a_match_names_its_token_and_later_tokens_show_nothing() -> None:
    sample = generation("cd")
    assert texts(sample, delta("abc"), delta("defg"), delta("hcd")) == ["ab", None, None]
    assert sample.num_kept_tokens == 4
    assert sample.is_complete
    sample.push(delta("", FinishReason.STOP, num_completion_tokens=4))
    assert sample.finish == ("stop", Usage(10, 0, 4))
    assert sample.take_rest().token_ids == ids_of("d")


def test_tokens_after_a_match_in_the_last_delta_are_overrun() -> None:
    sample = generation("c")
    assert texts(sample, delta("abcde", FinishReason.LENGTH, num_completion_tokens=5)) == ["ab"]
    assert sample.finish == ("stop", Usage(10, 0, 3, overrun_tokens=2))


def test_the_stop_string_is_shown_if_asked_for_and_nothing_behind_it() -> None:
    sample = generation("END", "EN_", includes_stop=True)
    shown = texts(sample, delta("aE"), delta("NDx", FinishReason.LENGTH))
    assert shown == ["a", "END"]
    assert sample.num_kept_tokens == 4


def test_stop_strings_are_looked_for_behind_the_fewest_tokens() -> None:
    sample = generation("ab", min_tokens=3)
    assert texts(sample, delta("abab")) == ["abab"], "the first two began too early"
    assert texts(sample, delta("xab", FinishReason.LENGTH)) == ["x"]
    assert sample.num_kept_tokens == 7


def test_too_few_tokens_are_not_stopped_by_what_the_end_releases() -> None:
    cut = TokenDelta("r", ids_of("a👋")[:-1], FinishReason.LENGTH)
    sample = generation("\ufffd", min_tokens=4)
    assert texts(sample, cut) == ["a\ufffd"]
    assert sample.num_kept_tokens is None


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_partial_match_is_released_at_the_end(finish: FinishReason) -> None:
    sample = generation("cde")
    assert texts(sample, delta("abcd"), delta("", finish)) == ["ab", "cd"]


def test_a_character_that_the_end_cuts_is_flushed() -> None:
    cut = TokenDelta("r", ids_of("a👋")[:-1], finish_reason=FinishReason.LENGTH)
    assert texts(generation(), cut) == ["a\ufffd"]


def test_a_stop_string_that_the_flush_completes_keeps_every_token() -> None:
    sample = generation("\ufffd")
    cut = ids_of("ab👋")[:-1]
    usage = Usage(10, 0, 1 + len(cut))
    assert texts(sample, delta("x"), TokenDelta("r", cut, FinishReason.LENGTH, usage=usage)) == [
        "x",
        "ab",
    ]
    assert sample.finish == ("stop", usage)


def test_without_the_engines_counts_what_came_is_counted() -> None:
    sample = generation("bc")
    sample.push(delta("a"))
    assert sample.usage == Usage(10, 0, 1)
    sample.push(delta("bcd"))
    assert sample.usage == Usage(10, 0, 3, overrun_tokens=1)


@pytest.mark.parametrize(
    ("reason", "is_refused", "status"),
    [
        (FinishReason.TIMEOUT, False, 504),
        (FinishReason.ERROR, False, 500),
        (FinishReason.ABORT, False, 500),
        (FinishReason.ERROR, True, 400),
    ],
)
def test_other_ends_are_errors(reason: FinishReason, is_refused: bool, status: int) -> None:
    sample = generation()
    sample.push(TokenDelta("r", [], reason, error="too odd", is_refused=is_refused))
    assert sample.error is not None
    assert sample.error.status == status
    assert sample.finish is None
    assert reason is not FinishReason.ERROR or sample.error.message == "too odd"


def test_an_engine_that_is_lost_after_a_stop_string_loses_nothing() -> None:
    sample = generation("b")
    sample.push(delta("ab"))
    sample.push(TokenDelta("r", [], FinishReason.ERROR))
    assert sample.error is None
    assert sample.finish == ("stop", Usage(10, 0, 2))


def test_token_ids_leave_with_the_next_text() -> None:
    sample = generation()
    first, *others = ids_of("👋")
    assert sample.push(TokenDelta("r", [first])) is None
    piece = sample.push(TokenDelta("r", others))
    assert piece is not None
    assert (piece.text, piece.token_ids) == ("👋", [first, *others])
    sample.push(TokenDelta("r", [EOS_ID], FinishReason.STOP))
    assert sample.take_rest().token_ids == [EOS_ID]


def test_the_mean_log_probability_is_of_the_tokens_that_are_kept() -> None:
    sample = generation("b")
    logprobs = [fake_logprobs(token_id, 0) for token_id in ids_of("abc")]
    sample.push(TokenDelta("r", ids_of("abc"), logprobs=logprobs))
    kept = [item.logprob for item in logprobs[:2]]
    assert sample.mean_logprob == pytest.approx(sum(kept) / 2)
