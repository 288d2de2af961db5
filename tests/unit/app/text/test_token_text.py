"""What each token is shown as beside its log probability."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.token_text import TokenTexts, create_token_texts
from tests.unit.app.fakes import EOS_ID, TOKENIZER, ids_of
from tests.unit.app.tokenizer_kinds import CHAT_KINDS, word_piece

KINDS = {name: kind() for name, kind in CHAT_KINDS.items()}


def bytes_of(texts: TokenTexts, token_ids: list[int]) -> bytes:
    return b"".join(bytes(texts.of(token_id).bytes) for token_id in token_ids)


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(max_size=30) | st.text(st.sampled_from("é漢👋🏽\u200d👩\ufffd\u0301"), max_size=20))
@settings(max_examples=30, deadline=None)
def test_the_bytes_of_the_tokens_are_those_of_the_text(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    found = bytes_of(create_token_texts(tokenizer), token_ids)
    whole = tokenizer.decode(token_ids).encode()
    if kind == "metaspace":  # drops all the spaces of its first token
        assert found.lstrip(b" ") == whole.lstrip(b" ")
    else:
        assert found in (whole, b" " + whole)


def test_a_part_of_a_character_reads_as_a_replacement() -> None:
    texts = create_token_texts(TOKENIZER)
    shown = [texts.of(token_id) for token_id in ids_of("é")]
    assert [item.text for item in shown] == ["\ufffd", "\ufffd"]
    assert [item.bytes for item in shown] == [(0xC3,), (0xA9,)]


def test_sentencepiece_tokens_read_as_text() -> None:
    tokenizer = KINDS["gemma"]
    texts = create_token_texts(tokenizer)
    assert texts.of(tokenizer.get_vocab()["▁the"]).text == " the"
    assert texts.of(tokenizer.get_vocab()["<0xE4>"]).bytes == (0xE4,)
    assert texts.of(tokenizer.get_vocab()["\n\n"]).bytes == (10, 10)


def test_a_special_token_has_a_name_and_no_bytes() -> None:
    shown = create_token_texts(TOKENIZER).of(EOS_ID)
    assert (shown.text, shown.bytes) == ("<|im_end|>", ())


def test_tokens_without_bytes_of_their_own_read_as_they_decode() -> None:
    texts = create_token_texts(word_piece())
    assert texts.of(1).text == "the"
    assert texts.of(8).bytes == (0xC3, 0xA9)


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**32, 2**64])
def test_an_id_that_is_none_reads_as_nothing(token_id: int) -> None:
    for tokenizer in (TOKENIZER, word_piece(), *KINDS.values()):
        shown = create_token_texts(tokenizer).of(token_id)
        assert (shown.text, shown.bytes) == ("", ())
