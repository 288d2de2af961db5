"""Token ids to text as they come, never cutting a character. Knows the ``tokenizers`` package, no
requests.

The pieces of one sequence, flushed, are equal to decoding it whole. Byte-level vocabularies (GPT-2,
Llama 3, Qwen, SmolLM) map each token to bytes, which an incremental UTF-8 decoder reads; everything
else (SentencePiece with byte fallback) decodes a small window of tokens twice and shows the
difference.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from tokenizers import Tokenizer, decoders

_MAX_HELD_TOKENS = 8
"""A character has at most 4 bytes, and so 4 tokens: a longer undecodable tail is garbage."""


class Detokenizer(Protocol):
    """The state of one sequence."""

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; often empty."""
        ...

    def flush(self) -> str:
        """What is left when no more tokens come; an unfinished character becomes U+FFFD."""
        ...


class ByteLevelVocabulary:
    """The bytes of each token of a byte-level tokenizer; shared by all sequences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_ids = _special_ids(tokenizer)
        self._bytes_of: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        """Empty for special tokens and for ids that the vocabulary lacks."""
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._special_ids:
            return b""
        token = self._tokenizer.id_to_token(token_id) or ""
        try:
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        except KeyError:  # an added token stands in the vocabulary as it is
            return token.encode()


class ByteLevelDetokenizer:
    """One sequence of a byte-level vocabulary; about 0.3 µs per token."""

    def __init__(self, vocabulary: ByteLevelVocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._vocabulary.bytes_of(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """One sequence of any tokenizer.

    ``_ids[:_num_shown]`` were shown already and only give the context in which the rest is decoded
    (a leading space may depend on it); what they decode to is cut off. A U+FFFD at the end may be
    an unfinished character, so it is held back for a while, even if the model meant it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._num_shown = 0

    def push(self, token_id: int) -> str:
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
        fresh = text.removeprefix(shown)
        if fresh:
            self._ids = self._ids[self._num_shown :]
            self._num_shown = len(self._ids)
        return fresh


def create_detokenizer_factory(tokenizer: Tokenizer) -> Callable[[], Detokenizer]:
    """Chooses the kind once per model; the result makes the detokenizer of one request."""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        vocabulary = ByteLevelVocabulary(tokenizer)
        return lambda: ByteLevelDetokenizer(vocabulary)
    return lambda: WindowDetokenizer(tokenizer.decode)


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-ins: printing bytes as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + position): byte for position, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_of_char()
