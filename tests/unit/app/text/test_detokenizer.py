"""Incremental detokenizing equals decoding the whole sequence, and never cuts a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from app.text.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    create_detokenizer_factory,
)
from tests.unit.app.fakes import EOS_ID, TOKENIZER, ids_of
from tests.unit.app.tokenizer_kinds import CHAT_KINDS, word_piece

BYTE_TOKEN = "<0x00>"

create_byte_level = create_detokenizer_factory(TOKENIZER)
ANY_IDS = st.lists(st.integers(0, EOS_ID), max_size=40)
CHATTY_TEXT = st.text(st.sampled_from("ab é漢👋🏽\u200d👩\ufffd\u0301\n"), max_size=20)


KINDS = {name: kind() for name, kind in CHAT_KINDS.items()}


def pieces_of(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(st.text(max_size=40) | CHATTY_TEXT)
@settings(deadline=None)
def test_text_comes_back_whole_and_uncut(text: str) -> None:
    pieces = pieces_of(create_byte_level(), ids_of(text))
    assert "".join(pieces) == text
    whole = {char for char in text if char != "\ufffd"}
    assert {char for piece in pieces for char in piece} - {"\ufffd"} == whole
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@given(ANY_IDS)
@settings(max_examples=150, deadline=None)
def test_any_tokens_decode_as_the_whole_sequence_does(token_ids: list[int]) -> None:
    assert "".join(pieces_of(create_byte_level(), token_ids)) == TOKENIZER.decode(token_ids)


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(max_size=30) | CHATTY_TEXT)
@settings(max_examples=30, deadline=None)
def test_every_kind_of_tokenizer_brings_text_back_whole_and_uncut(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = pieces_of(create_detokenizer_factory(tokenizer)(), token_ids)
    whole = tokenizer.decode(token_ids)
    assert "".join(pieces) == whole
    assert sum(piece.count("\ufffd") for piece in pieces) == whole.count("\ufffd")


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_tokens_decode_as_the_whole_does(kind: str, data: st.DataObject) -> None:
    """But for bytes that are no UTF-8 in SentencePiece: see below."""
    tokenizer = KINDS[kind]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size()), max_size=30))
    if BYTE_TOKEN in tokenizer.get_vocab():
        names = map(tokenizer.id_to_token, token_ids)
        token_ids = [
            token_id
            for token_id, name in zip(token_ids, names, strict=True)
            if name is None or not name.startswith("<0x") or name < "<0x80>"
        ]
    pieces = pieces_of(create_detokenizer_factory(tokenizer)(), token_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("kind", ["llama2", "mistral", "gemma"])
@given(st.binary(max_size=24))
@settings(max_examples=30, deadline=None)
def test_byte_tokens_read_as_python_reads_bytes(kind: str, text: bytes) -> None:
    tokenizer = KINDS[kind]
    token_ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in text]
    pieces = pieces_of(create_detokenizer_factory(tokenizer)(), [*token_ids])  # type: ignore[list-item]
    if kind != "gemma":
        text = text.removeprefix(b" ")
    assert "".join(pieces) == text.decode(errors="replace")


@given(st.lists(st.integers(0, 12), max_size=20))
@settings(deadline=None)
def test_word_pieces_decode_in_a_window_as_the_whole_does(token_ids: list[int]) -> None:
    tokenizer = word_piece()
    pieces = pieces_of(create_detokenizer_factory(tokenizer)(), token_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids)


def test_a_window_does_not_grow_with_what_shows_nothing() -> None:
    tokenizer = word_piece()
    num_decoded: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        num_decoded.append(len(token_ids))
        return str(tokenizer.decode(token_ids))

    special_id = tokenizer.token_to_id("</s>")
    detokenizer = WindowDetokenizer(decode, lambda token_id: token_id != special_id)
    for _ in range(500):
        detokenizer.push(special_id or 0)
        detokenizer.push(1)
    assert max(num_decoded) <= 2


def test_a_replacement_character_that_the_model_means_is_shown() -> None:
    detokenizer = WindowDetokenizer(lambda ids: "\ufffd" * len(ids), lambda _: True)
    pieces = pieces_of(detokenizer, range(20))
    assert "".join(pieces) == "\ufffd" * 20
    assert pieces[7] == "\ufffd" * 8


@pytest.mark.parametrize("kind", [*CHAT_KINDS, "word_piece"])
def test_ids_that_are_none_show_nothing(kind: str) -> None:
    tokenizer = KINDS.get(kind) or word_piece()
    detokenizer = create_detokenizer_factory(tokenizer)()
    assert pieces_of(detokenizer, [-1, 10**6, 2**31, 2**32, 2**64]) == [""] * 6


def test_the_first_space_is_the_tokenizers_only_at_the_start() -> None:
    tokenizer = KINDS["llama2"]
    ids = tokenizer.get_vocab()
    detokenizer = create_detokenizer_factory(tokenizer)()
    pieces = pieces_of(detokenizer, [ids["</s>"], ids["▁"], ids["▁"]])
    assert pieces == ["", "", " ", ""]


def test_each_kind_of_tokenizer_gets_its_detokenizer() -> None:
    for tokenizer in KINDS.values():
        assert isinstance(create_detokenizer_factory(tokenizer)(), ByteDetokenizer)
    assert isinstance(create_detokenizer_factory(word_piece())(), WindowDetokenizer)


def test_special_and_unknown_tokens_show_nothing() -> None:
    detokenizer = create_byte_level()
    assert pieces_of(detokenizer, [*ids_of("a"), EOS_ID, 10**6, *ids_of("b")]) == [
        "a",
        "",
        "",
        "b",
        "",
    ]


def test_a_character_that_never_ends_becomes_one_replacement_character() -> None:
    first_bytes_of_an_emoji = ids_of("👋")[:3]
    assert "".join(pieces_of(create_byte_level(), first_bytes_of_an_emoji)) == "\ufffd"


def test_an_added_token_is_shown_as_it_is_written() -> None:
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.add_tokens([AddedToken("<tool é>", special=False)])
    detokenizer = create_detokenizer_factory(tokenizer)()
    assert "".join(pieces_of(detokenizer, [258])) == "<tool é>"
