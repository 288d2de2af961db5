"""Which bytes of the text came of which token: joined, they are the text."""

from hypothesis import given
from hypothesis import strategies as st

from app.detokenizer import create_detokenizer_factory
from app.token_trace import TokenTrace, TracedToken
from tests.unit.app.fakes import EOS_ID, TOKENIZER, ids_of

create_detokenizer = create_detokenizer_factory(TOKENIZER)


def traced(token_ids: list[int], bytes_of: dict[int, bytes]) -> tuple[str, list[TracedToken]]:
    """Released after every token; checks every release."""
    trace = TokenTrace(lambda token_id: bytes_of.get(token_id, b""))
    detokenizer = create_detokenizer()
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


@given(st.text(max_size=20), st.lists(st.integers(0, 257), max_size=6), st.integers(0, 20))
def test_joined_bytes_are_the_text_whatever_the_tokens(
    text: str, odd_ids: list[int], position: int
) -> None:
    """Specials (256, 257) and bytes that are no UTF-8 stand amid the text."""
    token_ids = ids_of(text)
    token_ids[position:position] = odd_ids
    shown, tokens = traced(token_ids, VOCABULARY)
    detokenizer = create_detokenizer()
    whole = "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])
    assert shown == whole
    assert [token.token_id for token in tokens] == token_ids


@given(st.text(max_size=20))
def test_tokens_of_valid_text_keep_their_own_bytes(text: str) -> None:
    _, tokens = traced(ids_of(text), VOCABULARY)
    assert [token.bytes for token in tokens] == [bytes([byte]) for byte in text.encode()]


@given(st.text(max_size=20))
def test_a_vocabulary_that_says_otherwise_changes_no_text(text: str) -> None:
    shown, tokens = traced(ids_of(text), dict.fromkeys(range(256), b"??"))
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
