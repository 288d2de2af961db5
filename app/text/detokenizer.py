"""Token ids to text as they come, never cutting a character. Knows no requests.

Where each token has bytes of its own (see ``app.text.token_text``), an incremental UTF-8 decoder
reads them; the other tokenizers decode a small window of tokens twice and show the difference. The
pieces of one sequence, flushed, are equal to decoding it whole, but for bytes that are no UTF-8 in
a SentencePiece vocabulary: ``tokenizers`` gives up the whole run of bytes they stand in, which a
stream cannot, since it showed the characters before them already.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from tokenizers import Tokenizer

from app.text.token_text import ByteVocabulary, create_byte_vocabulary, special_tokens

_MAX_HELD_TOKENS = 8
"""A character has at most 4 bytes, and so 4 tokens: a longer undecodable tail is garbage."""

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """The state of one sequence."""

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; often empty."""
        ...

    def flush(self) -> str:
        """What is left when no more tokens come; an unfinished character becomes U+FFFD."""
        ...


class ByteDetokenizer:
    """One sequence of a vocabulary of bytes."""

    def __init__(self, vocabulary: ByteVocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = _utf8_decoder("replace")
        self._is_at_start = vocabulary.first_space != "kept"

    def push(self, token_id: int) -> str:
        token = self._vocabulary.bytes_of(token_id)
        if self._is_at_start and token:
            token = self._vocabulary.without_first_space(token)
            self._is_at_start = False
        return self._decoder.decode(token)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """One sequence of any tokenizer.

    ``_ids[:_num_shown]`` were shown already and only give the context in which the rest is decoded
    (a leading space may depend on it); what they decode to is cut off. A U+FFFD at the end may be
    an unfinished character, so it is held back for a while, even if the model meant it.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], shows: Callable[[int], bool]
    ) -> None:
        """``shows`` is False for ids that decode to nothing wherever they stand."""
        self._decode = decode
        self._shows = shows
        self._ids: list[int] = []
        self._num_shown = 0

    def push(self, token_id: int) -> str:
        if not self._shows(token_id):
            return ""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        num_held = len(self._ids) - self._num_shown
        if text.endswith("\ufffd") and num_held < _MAX_HELD_TOKENS:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._decode(self._ids)) if self._ids else ""

    def _advance(self, text: str) -> str:
        shown = self._decode(self._ids[: self._num_shown]) if self._num_shown else ""
        self._ids = self._ids[self._num_shown :]
        self._num_shown = len(self._ids)
        return text[len(shown) :]  # never shown twice, whatever became of the text before it


def create_detokenizer_factory(
    tokenizer: Tokenizer, vocabulary: ByteVocabulary | None = None
) -> Callable[[], Detokenizer]:
    """Chooses the kind once per model; the result makes the detokenizer of one request."""
    vocabulary = vocabulary or create_byte_vocabulary(tokenizer)
    if vocabulary is not None:
        return lambda: ByteDetokenizer(vocabulary)
    special_ids = special_tokens(tokenizer)

    def shows(token_id: int) -> bool:
        is_known = 0 <= token_id < 2**32 and tokenizer.id_to_token(token_id) is not None
        return is_known and token_id not in special_ids

    return lambda: WindowDetokenizer(tokenizer.decode, shows)
