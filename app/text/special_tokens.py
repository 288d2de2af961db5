"""Finds special tokens in text: those that a template wrote, which are control tokens, and those
that a user spelled, which are not.

Follows the first pass of ``tokenizers``' added vocabulary: leftmost, longest, with the white space
that a token takes along. Must not know templates or models.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenizers import AddedToken, Tokenizer

_WINDOW_CHARS = 32_768
"""A search holds the interpreter lock for so many characters at most."""

_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""Unicode's, as Rust has it."""

Trie = dict[str, "Trie"]


@dataclass(frozen=True, slots=True)
class Span:
    """A special token in a text."""

    start: int
    end: int
    token: str


class SpecialTokens:
    """The special tokens of one tokenizer; immutable."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        special = {token.content: token for token in added.values() if token.special}
        self.id_of = {token.content: id_ for id_, token in added.items() if token.special}
        self._tokens = special
        self._max_chars = max(map(len, special), default=0)
        self._pattern = re.compile(_regex_of(special) if special else r"(?!)")
        self._prefixes = frozenset(
            token[:length] for token in special for length in range(1, len(token))
        )
        self._leads = frozenset(token[0] for token in special)
        self.are_boundaries = all(
            not token.single_word and (tokenizer.normalizer is None or not token.normalized)
            for token in special.values()
        ) and not any(self._is_hidden_by(token) for token in added.values())
        """Whether ``tokenizers`` cuts a text at them before it looks at anything else."""

    def find(self, text: str) -> Iterator[Span]:
        """In order; spans do not overlap."""
        position = 0
        for start, end in self._occurrences(text):
            token = self._tokens[text[start:end]]
            before = text[max(position, start - _WINDOW_CHARS) : start]
            num_before = len(before) - len(before.rstrip(_WHITE_SPACE)) if token.lstrip else 0
            after = text[end : end + _WINDOW_CHARS] if token.rstrip else ""
            position = end + len(after) - len(after.lstrip(_WHITE_SPACE))
            yield Span(start - num_before, position, token.content)

    def are_spelled_in(self, value: Any) -> bool:
        """Whether any text in ``value`` holds a special token, or ends like the beginning of one:
        what follows in the prompt might complete it.
        """
        return any(
            next(self._occurrences(text), None) is not None or self._num_dangling_chars(text)
            for text in _texts(value)
        )

    def marking(self, mark: Callable[[str], str]) -> Callable[[str], str]:
        """Puts a mark for each special token that a text spells, or begins to spell at its end."""
        return partial(self._with_marks, mark)

    def _with_marks(self, mark: Callable[[str], str], text: str) -> str:
        pieces: list[str] = []
        position = 0
        for start, end in self._occurrences(text):
            pieces += (text[position:start], mark(text[start:end]))
            position = end
        rest = text[position:]
        num_dangling = self._num_dangling_chars(rest)
        if num_dangling:
            pieces += (rest[:-num_dangling], mark(rest[-num_dangling:]))
        else:
            pieces.append(rest)
        return "".join(pieces)

    def _occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        position = 0
        while position < len(text):
            window_end = position + _WINDOW_CHARS
            match = self._pattern.search(text, position, window_end + self._max_chars)
            if match is None or match.start() >= window_end:
                position = window_end
            else:
                yield match.span()
                position = match.end()

    def _num_dangling_chars(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a special token."""
        tail = text[-self._max_chars :]
        if self._leads.isdisjoint(tail):
            return 0
        for position, char in enumerate(tail):
            if char in self._leads and tail[position:] in self._prefixes:
                return len(tail) - position
        return 0

    def _is_hidden_by(self, added: AddedToken) -> bool:
        """Whether an ordinary added token could take characters of a special one."""
        text = added.content
        return not added.special and (
            self._pattern.search(text) is not None
            or any(text[start:] in self._prefixes for start in range(1, len(text)))
        )


def replace_texts(value: Any, replace: Callable[[str], str]) -> Any:
    """A copy of JSON-like ``value``: mappings (their keys, too) and lists of texts."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, Mapping):
        return {
            replace_texts(key, replace): replace_texts(item, replace) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [replace_texts(item, replace) for item in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    """Every text in JSON-like ``value``, in any order; keys are the client's words, too."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item


def _regex_of(tokens: Iterable[str]) -> str:
    """Matches the longest token at a place in time that does not grow with their number."""
    root: Trie = {}
    for token in tokens:
        node = root
        for char in token:
            node = node.setdefault(char, {})
        node[""] = {}  # a token ends here
    return _regex_of_node(root)


def _regex_of_node(node: Trie) -> str:
    literal = ""
    while len(node) == 1 and "" not in node:
        ((char, node),) = node.items()
        literal += re.escape(char)
    branches: Sequence[str] = [
        re.escape(char) + _regex_of_node(child) for char, child in node.items() if char
    ]
    if not branches:
        return literal
    return f"{literal}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
