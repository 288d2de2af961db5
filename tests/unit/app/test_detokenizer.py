"""Incremental detokenizing equals decoding the whole sequence, and never cuts a character."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from app.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    create_detokenizer_factory,
)
from tests.unit.app.fakes import EOS_ID, TOKENIZER, ids_of

create_byte_level = create_detokenizer_factory(TOKENIZER)
ANY_IDS = st.lists(st.integers(0, EOS_ID), max_size=40)
CHATTY_TEXT = st.text(st.sampled_from("ab é漢👋🏽\u200d👩\ufffd\u0301\n"), max_size=20)


def sentencepiece_like() -> Tokenizer:
    """Byte fallback and spaces as ``▁``, as in Llama 2."""
    vocabulary = {"<unk>": 0, "</s>": 1}
    vocabulary |= {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    vocabulary |= {piece: 258 + index for index, piece in enumerate(("▁", "▁a", "b", "é", "ab"))}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


SENTENCEPIECE = sentencepiece_like()


def pieces_of(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(st.text(max_size=40) | CHATTY_TEXT)
def test_text_comes_back_whole_and_uncut(text: str) -> None:
    pieces = pieces_of(create_byte_level(), ids_of(text))
    assert "".join(pieces) == text
    whole = {char for char in text if char != "\ufffd"}
    assert {char for piece in pieces for char in piece} - {"\ufffd"} == whole
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@given(ANY_IDS)
@settings(max_examples=300)
def test_any_tokens_decode_as_the_whole_sequence_does(token_ids: list[int]) -> None:
    assert "".join(pieces_of(create_byte_level(), token_ids)) == TOKENIZER.decode(token_ids)


@given((st.text(max_size=30) | CHATTY_TEXT).map(lambda text: text.replace("\ufffd", "")))
def test_byte_fallback_comes_back_whole_and_uncut(text: str) -> None:
    token_ids = SENTENCEPIECE.encode(text, add_special_tokens=False).ids
    pieces = pieces_of(create_detokenizer_factory(SENTENCEPIECE)(), token_ids)
    assert "".join(pieces) == SENTENCEPIECE.decode(token_ids)


def test_each_kind_of_tokenizer_gets_its_detokenizer() -> None:
    assert isinstance(create_byte_level(), ByteDetokenizer)
    assert isinstance(create_detokenizer_factory(SENTENCEPIECE)(), ByteDetokenizer)


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
