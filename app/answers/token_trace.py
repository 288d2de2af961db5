"""Which bytes of a text came from which token, so that log probabilities stand beside their text.

The bytes of the shown tokens, joined, are the UTF-8 of the shown text: whatever a token holds that
the text does not (half a character that never became one, the space that a tokenizer strips, a
stop string that was cut) is no part of its bytes. Knows no requests and no JSON.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from engine.messages import TokenLogprobs

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True, eq=False)
class TracedToken:
    """A token and its part of the text."""

    token_id: int
    logprobs: TokenLogprobs | None
    """None for the first token of a prompt."""
    bytes: bytes
    """Of the text; until the token is shown, what the vocabulary says."""


class Shown(NamedTuple):
    """What one release brought: ``text`` is made of exactly ``tokens``."""

    text: str
    tokens: list[TracedToken]


class TokenTrace:
    """The state of one text.

    Text is released in whole tokens and whole characters: a token that shares a character with the
    next one waits for it, and so does the text before that character.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        """``bytes_of``: what the vocabulary says about a token id."""
        self._bytes_of = bytes_of
        self._placed: list[TracedToken] = []
        """Their bytes are in ``_text``, and final unless a stop string cuts them."""
        self._unplaced: list[TracedToken] = []
        """Their bytes, from ``_num_used`` on, are still to come."""
        self._num_used = 0
        """Bytes of the first unplaced token that are in ``_text`` already."""
        self._text = b""
        """Not released yet: the bytes of ``_placed``, and the used ones of the next token."""

    def push(self, token_id: int, logprobs: TokenLogprobs | None, text: str) -> None:
        """Add a token, and the text that the detokenizer released on seeing it."""
        self._unplaced.append(TracedToken(token_id, logprobs, self._bytes_of(token_id)))
        if text:
            self._place(text.encode())

    def end(self, text: str) -> None:
        """No more tokens: ``text`` is what the detokenizer still held."""
        if text:
            self._place(text.encode(), is_end=True)
        for token in self._unplaced:  # they never became text
            token.bytes = token.bytes[: self._num_used]
            self._num_used = 0
        self._placed += self._unplaced
        self._unplaced = []

    def release(self, num_bytes: int, *, is_cut: bool = False) -> Shown:
        """Show tokens within the next ``num_bytes``, counted from what was released before.

        ``is_cut``: the text ends there, even within a token; what follows is forgotten.
        """
        if is_cut:
            return self._cut(num_bytes)
        num_tokens = num_shown = end = 0
        for position, token in enumerate(self._placed, start=1):
            end += len(token.bytes)
            if end > num_bytes:
                break
            if self._is_boundary(end):
                num_shown, num_tokens = end, position
        if num_tokens == len(self._placed) and not self._unplaced:
            num_shown = num_bytes  # should a tokenizer make text of no token, it is shown, too
        tokens, self._placed = self._placed[:num_tokens], self._placed[num_tokens:]
        text, self._text = self._text[:num_shown], self._text[num_shown:]
        return Shown(text.decode(), tokens)

    def _place(self, text: bytes, *, is_end: bool = False) -> None:
        """Hand ``text`` out to the tokens that wait for it."""
        self._text += text
        rest = b"".join(token.bytes for token in self._unplaced)[self._num_used :]
        if not rest.startswith(text):
            self._give_to_last(text, b"" if is_end else _unfinished(rest))
            return
        self._num_used += len(text)
        num_whole = 0
        for token in self._unplaced:
            if len(token.bytes) > self._num_used:
                break
            self._num_used -= len(token.bytes)
            num_whole += 1
        self._placed += self._unplaced[:num_whole]
        self._unplaced = self._unplaced[num_whole:]

    def _give_to_last(self, text: bytes, unfinished: bytes) -> None:
        """The text is not what the vocabulary says: an invalid character, a stripped space.

        ``unfinished``: bytes of the last token that may still become text.
        """
        for token in self._unplaced:
            token.bytes = token.bytes[: self._num_used]
            self._num_used = 0
        if self._unplaced:
            last = self._unplaced[-1]
            last.bytes += text
            if unfinished:
                self._num_used = len(last.bytes)
                last.bytes += unfinished
        num_placed = len(self._unplaced) - bool(unfinished)
        self._placed += self._unplaced[:num_placed]
        self._unplaced = self._unplaced[num_placed:]

    def _is_boundary(self, end: int) -> bool:
        """Whether a character ends there."""
        return end == len(self._text) or self._text[end] & 0xC0 != 0x80

    def _cut(self, num_bytes: int) -> Shown:
        text = self._text[:num_bytes]
        tokens: list[TracedToken] = []
        num_left = num_bytes
        for token in [*self._placed, *self._unplaced]:
            if token.bytes and not num_left:
                break
            token.bytes = token.bytes[:num_left]
            num_left -= len(token.bytes)
            tokens.append(token)
        self._placed, self._unplaced, self._text = [], [], b""
        return Shown(text.decode(), tokens)


def _unfinished(utf8: bytes) -> bytes:
    """The end of ``utf8`` that could be the beginning of a character."""
    decoder = _utf8_decoder("replace")
    decoder.decode(utf8)
    return decoder.getstate()[0]
