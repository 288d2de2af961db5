"""Where a text spells special tokens, as ``tokenizers`` sees it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from app.text.special_tokens import Span, SpecialTokens, replace_texts


def with_tokens(*tokens: AddedToken) -> SpecialTokens:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([*tokens])
    return SpecialTokens(tokenizer)


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


def test_the_longest_token_at_a_place_is_found() -> None:
    tokens = with_tokens(special("<a>"), special("<a>b"), special("<ab>"))
    found = [span.token for span in tokens.find("<a>b<a><a<ab>")]
    assert found == ["<a>b", "<a>", "<ab>"]


def test_a_token_takes_the_white_space_beside_it_along() -> None:
    tokens = with_tokens(special("<l>", lstrip=True), special("<r>", rstrip=True), special("<n>"))
    text = "a \n<l> b <r>\u00a0 <l> <n> "
    assert [*tokens.find(text)] == [
        Span(1, 6, "<l>"),
        Span(9, 14, "<r>"),
        Span(14, 17, "<l>"),
        Span(18, 21, "<n>"),
    ]


@given(st.lists(st.sampled_from(["<end>", "<e", "nd>", "x" * 32_760, "y"]), max_size=6))
@settings(deadline=None)
def test_nothing_is_missed_in_long_texts(parts: list[str]) -> None:
    text = "".join(parts)
    found = [(span.start, span.end) for span in with_tokens(special("<end>")).find(text)]
    expected = []
    position = text.find("<end>")
    while position >= 0:
        expected.append((position, position + 5))
        position = text.find("<end>", position + 5)
    assert found == expected


@pytest.mark.parametrize("text", ["<end>", "x<end>y", "x<", "<en", "<end", "a<<end"])
def test_what_is_a_token_or_may_become_one_is_spelled(text: str) -> None:
    tokens = with_tokens(special("<end>"))
    assert tokens.are_spelled_in({"a": [1, {"b": (text,)}]})
    assert tokens.are_spelled_in([{text: None}])
    marked = replace_texts(text, tokens.marking(lambda spelled: "#" * len(spelled)))
    assert "#" in marked
    assert not tokens.are_spelled_in(marked)
    assert len(marked) == len(text)


@pytest.mark.parametrize("text", ["", "end>", "< ", "x<y", "<end >"])
def test_what_cannot_become_a_token_is_not(text: str) -> None:
    tokens = with_tokens(special("<end>"))
    assert not tokens.are_spelled_in([text])


def test_a_tokenizer_without_special_tokens_finds_none() -> None:
    tokens = with_tokens(AddedToken("<think>", special=False, normalized=False))
    assert not [*tokens.find("<think>")]
    assert not tokens.are_spelled_in("<think>")
    assert tokens.are_boundaries


@pytest.mark.parametrize("ordinary", ["x<end>", "<end>x", "x<e"])
def test_an_ordinary_token_that_hides_a_special_one_forbids_cutting(ordinary: str) -> None:
    added = AddedToken(ordinary, special=False, normalized=False)
    assert not with_tokens(special("<end>"), added).are_boundaries


def test_a_token_that_must_be_a_single_word_forbids_cutting() -> None:
    assert not with_tokens(special("end", single_word=True)).are_boundaries


def test_thousands_of_tokens_are_found_at_once() -> None:
    tokens = with_tokens(*(special(f"<unused{number}>") for number in range(6000)))
    assert [span.token for span in tokens.find("<unused5999><unused<unused1>")] == [
        "<unused5999>",
        "<unused1>",
    ]
