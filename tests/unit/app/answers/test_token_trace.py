"""Which bytes of the text came of which token: joined, they are the text."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.answers.echo import create_echo
from app.answers.token_trace import TokenTrace, TracedToken
from app.text.detokenizer import Detokenizer, create_detokenizer_factory
from app.text.token_text import create_token_texts
from engine.messages import TokenLogprobs
from tests.unit.app.fakes import EOS_ID, TOKENIZER, ids_of
from tests.unit.app.tokenizer_kinds import CHAT_KINDS, word_piece

KINDS = {name: create() for name, create in CHAT_KINDS.items()} | {"word_piece": word_piece()}

create_detokenizer = create_detokenizer_factory(TOKENIZER)


def traced(
    token_ids: list[int], bytes_of: Callable[[int], bytes], detokenizer: Detokenizer
) -> tuple[str, list[TracedToken]]:
    """Released after every token; checks every release."""
    trace = TokenTrace(bytes_of)
    text, tokens, num_held = "", list[TracedToken](), 0

    def release(piece: str) -> None:
        nonlocal text, num_held
        num_held += len(piece.encode())
        shown = trace.release(num_held)
        assert shown.text.encode() == b"".join(token.bytes for token in shown.tokens)
        num_held -= len(shown.text.encode())
        text += shown.text
        tokens.extend(shown.tokens)

    for token_id in token_ids:
        piece = detokenizer.push(token_id)
        trace.push(token_id, None, piece)
        release(piece)
    rest = detokenizer.flush()
    trace.end(rest)
    release(rest)
    return text, tokens


def vocabulary() -> dict[int, bytes]:
    """Of every byte, by trying: the fake's ids are not the bytes."""
    found: dict[int, bytes] = {}
    codes = [*range(0x800), *range(0x800, 0xD800, 0x40), *range(0xE000, 0x10000, 0x40)]
    codes += range(0x10000, 0x110000, 0x1000)
    for char in map(chr, codes):
        for token_id, byte in zip(ids_of(char), char.encode(), strict=True):
            found[token_id] = bytes([byte])
    return found


VOCABULARY = vocabulary()


def own_bytes(token_id: int) -> bytes:
    return VOCABULARY.get(token_id, b"")


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_every_kind_of_tokenizer_can_be_traced(kind: str, data: st.DataObject) -> None:
    """Its texts are only what it says of each token by itself."""
    tokenizer = KINDS[kind]
    texts = create_token_texts(tokenizer)
    ids = st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=20)
    words = st.text(max_size=12).map(lambda text: tokenizer.encode(text).ids)
    token_ids = data.draw(ids | words)
    create = create_detokenizer_factory(tokenizer)
    shown, tokens = traced(token_ids, lambda token_id: bytes(texts.of(token_id).bytes), create())
    whole = create()
    assert shown == "".join([*map(whole.push, token_ids), whole.flush()])
    assert [token.token_id for token in tokens] == token_ids


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_a_prompt_is_echoed_as_it_was_sent(kind: str, prompt: str) -> None:
    tokenizer = KINDS[kind]
    create = create_detokenizer_factory(tokenizer)
    token_ids = tokenizer.encode(prompt).ids
    if token_ids:
        texts = create_token_texts(tokenizer)
        make = create_echo(prompt, token_ids, create(), texts.of, has_logprobs=True)
        piece = make([TokenLogprobs(-1.0, [], [])] * (len(token_ids) - 1))
        assert piece.text == prompt
        assert [token.token_id for token in piece.tokens] == token_ids
        assert b"".join(token.bytes for token in piece.tokens) == prompt.encode()


@given(st.text(max_size=20), st.lists(st.integers(0, 257), max_size=6), st.integers(0, 20))
def test_joined_bytes_are_the_text_whatever_the_tokens(
    text: str, odd_ids: list[int], position: int
) -> None:
    """Specials (256, 257) and bytes that are no UTF-8 stand amid the text."""
    token_ids = ids_of(text)
    token_ids[position:position] = odd_ids
    shown, tokens = traced(token_ids, own_bytes, create_detokenizer())
    detokenizer = create_detokenizer()
    whole = "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])
    assert shown == whole
    assert [token.token_id for token in tokens] == token_ids


@given(st.text(max_size=20))
def test_tokens_of_valid_text_keep_their_own_bytes(text: str) -> None:
    _, tokens = traced(ids_of(text), own_bytes, create_detokenizer())
    assert [token.bytes for token in tokens] == [bytes([byte]) for byte in text.encode()]


@given(st.text(max_size=20))
def test_a_vocabulary_that_says_otherwise_changes_no_text(text: str) -> None:
    shown, tokens = traced(ids_of(text), lambda _: b"??", create_detokenizer())
    assert shown == text
    assert b"".join(token.bytes for token in tokens) == text.encode()


def test_a_character_in_two_tokens_leaves_with_both() -> None:
    trace = TokenTrace({0: b"a\xf0\x9f", 1: b"\x91\x8bb", 2: b"c"}.__getitem__)
    trace.push(0, None, "a")
    assert trace.release(1) == ("", [])
    trace.push(1, None, "👋b")
    trace.push(2, None, "c")
    assert trace.release(5) == ("", []), "a stop string holds the b, and that the rest"
    shown = trace.release(6)
    assert shown.text == "a👋b"
    assert [token.bytes for token in shown.tokens] == [b"a\xf0\x9f", b"\x91\x8bb"]


def test_a_stop_string_cuts_the_token_that_it_begins_in() -> None:
    trace = TokenTrace({0: b"a", 1: b"bST", 2: b"OPc", EOS_ID: b""}.__getitem__)
    for token_id, text in [(0, "a"), (EOS_ID, ""), (1, "bST"), (EOS_ID, ""), (2, "OPc")]:
        trace.push(token_id, None, text)
    shown = trace.release(2, is_cut=True)
    assert shown.text == "ab"
    assert [(token.token_id, token.bytes) for token in shown.tokens] == [
        (0, b"a"),
        (EOS_ID, b""),
        (1, b"b"),
        (EOS_ID, b""),
    ]


def test_text_of_no_token_is_shown() -> None:
    trace = TokenTrace({0: b"a"}.__getitem__)
    trace.push(0, None, "a")
    trace.end("!")
    assert trace.release(2).text == "a!"
