"""What each token stands for, as bytes: the one place that reads a tokenizer's decoder.

Two kinds of vocabulary map every token to bytes by itself: byte-level ones (GPT-2, Llama 3, Qwen,
SmolLM) and SentencePiece's with byte fallback (Llama 2, Mistral, Gemma). The others (WordPiece and
older ones) have no such map: ``create_byte_vocabulary`` is None for them. Must not know requests.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Tokenizer

_METASPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token, as log probabilities show it."""

    text: str
    """Bytes that are no whole character read as U+FFFD; a special token reads as its name."""
    bytes: tuple[int, ...]
    """Those of consecutive tokens concatenate to the UTF-8 of the answer (but for a space that
    some tokenizers drop at its start); none for a token that the answer does not show.
    """


FirstSpace = Literal["kept", "one", "all"]
"""How many of the spaces that an answer begins with were put there by the tokenizer."""


class ByteVocabulary:
    """The bytes of each token; shared by all sequences of a model, filled in as tokens come."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        read: Callable[[str], bytes],
        *,
        first_space: FirstSpace = "kept",
    ) -> None:
        self.first_space = first_space
        self._id_to_token = tokenizer.id_to_token
        self._read = read
        self._bytes_of: dict[int, bytes] = dict.fromkeys(special_tokens(tokenizer), b"")

    def bytes_of(self, token_id: int) -> bytes:
        """Empty for special tokens and for ids that the vocabulary lacks."""
        known = self._bytes_of.get(token_id)
        if known is not None:
            return known
        token = self._id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            return b""  # not kept: there is no end of such ids
        found = self._bytes_of[token_id] = self._read(token)
        return found

    def without_first_space(self, token: bytes) -> bytes:
        """``token`` as the first of an answer that shows anything."""
        if self.first_space == "one":
            return token.removeprefix(b" ")
        return token.lstrip(b" ") if self.first_space == "all" else token


def special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Names by id of the tokens that an answer does not show."""
    added = tokenizer.get_added_tokens_decoder()
    return {token_id: token.content for token_id, token in added.items() if token.special}


def create_byte_vocabulary(tokenizer: Tokenizer) -> ByteVocabulary | None:
    """None if tokens of this kind have no bytes of their own."""
    steps = _decoder_steps(tokenizer)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteVocabulary(tokenizer, _read_byte_level)
    if kinds == ["Metaspace"] and steps[0]["replacement"] == _METASPACE:
        scheme = steps[0].get("prepend_scheme", "always")
        return ByteVocabulary(
            tokenizer, _read_metaspace, first_space="kept" if scheme == "never" else "all"
        )
    strips = steps[3:]
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _is_metaspace(steps[0]):
        if not strips:
            return ByteVocabulary(tokenizer, _read_byte_fallback)
        if len(strips) == 1 and _is_first_space(strips[0]):
            return ByteVocabulary(tokenizer, _read_byte_fallback, first_space="one")
    return None


class TokenTexts:
    """``TokenText`` by id, made once per token."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: ByteVocabulary | None) -> None:
        self._tokenizer = tokenizer
        self._special = special_tokens(tokenizer)
        self._vocabulary = vocabulary
        self._made: dict[int, TokenText] = {}

    def of(self, token_id: int) -> TokenText:
        made = self._made.get(token_id)
        if made is None:
            made = self._make(token_id)
            if self.name_of(token_id):  # there is no end of unknown ids
                self._made[token_id] = made
        return made

    def name_of(self, token_id: int) -> str:
        """As it stands in the vocabulary; empty for an id that it lacks."""
        is_possible = 0 <= token_id < 2**32
        return (self._tokenizer.id_to_token(token_id) or "") if is_possible else ""

    def _make(self, token_id: int) -> TokenText:
        name = self._special.get(token_id)
        if name is not None:
            return TokenText(name, ())
        if self._vocabulary is None:
            text = self._tokenizer.decode([token_id]) if self.name_of(token_id) else ""
            return TokenText(text, tuple(text.encode()))
        token = self._vocabulary.bytes_of(token_id)
        return TokenText(token.decode(errors="replace"), tuple(token))


def create_token_texts(tokenizer: Tokenizer) -> TokenTexts:
    return TokenTexts(tokenizer, create_byte_vocabulary(tokenizer))


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        return []
    decoder = json.loads(tokenizer.decoder.__getstate__())
    steps: list[dict[str, Any]] = (
        decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    )
    return steps


def _is_metaspace(step: dict[str, Any]) -> bool:
    is_space: bool = step["pattern"] == {"String": _METASPACE} and step["content"] == " "
    return is_space


def _is_first_space(step: dict[str, Any]) -> bool:
    return step == {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _read_byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    except KeyError:  # an added token stands in the vocabulary as it is
        return token.encode()


def _read_metaspace(token: str) -> bytes:
    return token.replace(_METASPACE, " ").encode()


def _read_byte_fallback(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return _read_metaspace(token) if byte is None else bytes((int(byte[1], 16),))


def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-ins: printing bytes as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + position): byte for position, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_of_char()
