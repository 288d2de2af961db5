"""Text between special tokens to token ids, piece by piece.

``tokenizers`` cuts a text at its special tokens first and reads every piece by itself, so pieces
that were tokenized alone, and remembered, are what the whole text gives. Only a Metaspace
pre-tokenizer knows the first piece from the others; those get a tokenizer of their own. Text is
only text here: special tokens in it do not act. Must not know templates.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models

from app.text.give_way import give_way
from app.text.segment_cache import SegmentCache, TokenIds, segment_key


class SegmentEncoder:
    """One model's; used from any thread."""

    def __init__(self, tokenizer: Tokenizer, cache: SegmentCache) -> None:
        self._first = _copy_of(tokenizer)
        self._first.encode_special_tokens = True  # reads special tokens as ordinary text
        self._inner = self._first
        if _knows_first_piece(tokenizer):
            self._inner = _copy_of(tokenizer)
            self._inner.encode_special_tokens = True
            self._inner.pre_tokenizer = _never_first(tokenizer)
        self._cache = cache

    def encode(self, pieces: Sequence[str], *, is_first: bool) -> list[TokenIds]:
        """The ids of each piece; ``is_first``: the first one begins the text."""
        first = [segment_key(piece, is_first=True) for piece in pieces[:is_first]]
        keys = [*first, *(segment_key(piece, is_first=False) for piece in pieces[is_first:])]
        found = {key: self._cache.get(key) for key in keys}
        self._fill(found, keys[:is_first], pieces[:is_first], self._first)
        self._fill(found, keys[is_first:], pieces[is_first:], self._inner)
        return [token_ids for key in keys if (token_ids := found[key]) is not None]

    def _fill(
        self,
        found: dict[bytes, TokenIds | None],
        keys: Sequence[bytes],
        pieces: Sequence[str],
        tokenizer: Tokenizer,
    ) -> None:
        missing = {
            key: piece for key, piece in zip(keys, pieces, strict=True) if found[key] is None
        }
        encoded = _tokenize(tokenizer, [*missing.values()])
        for key, token_ids in zip(missing, encoded, strict=True):
            found[key] = token_ids
            self._cache.put(key, token_ids)


def encode_text(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """The whole text at once; special tokens in it act."""
    # The batch call frees the interpreter lock while it works; the single one does not.
    encodings = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    token_ids: list[int] = encodings[0].ids
    give_way(len(token_ids))
    del encodings  # which takes a while, too
    give_way(len(token_ids))
    return token_ids


def _tokenize(tokenizer: Tokenizer, pieces: list[str]) -> list[TokenIds]:
    # The batch call frees the interpreter lock while it works; the single one does not.
    encodings = tokenizer.encode_batch_fast(pieces, add_special_tokens=False) if pieces else []
    encodings.reverse()
    encoded: list[TokenIds] = []
    while encodings:
        encoding = encodings.pop()
        token_ids = encoding.ids
        give_way(len(token_ids))
        del encoding  # which takes a while, too
        give_way(len(token_ids))
        encoded.append(array("I", token_ids))
        give_way(len(token_ids))
    return encoded


def _copy_of(tokenizer: Tokenizer) -> Tokenizer:
    """Shares the model, which is most of the memory."""
    copy = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        copy.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        copy.pre_tokenizer = tokenizer.pre_tokenizer
    added = tokenizer.get_added_tokens_decoder()
    copy.add_tokens([added[token_id] for token_id in sorted(added)])
    if copy.get_added_tokens_decoder() == added:
        return copy
    whole = Tokenizer.from_str(tokenizer.to_str())  # ids with gaps, which only the file can give
    whole.no_padding()
    whole.no_truncation()
    return whole


def _pre_tokenizer_state(tokenizer: Tokenizer) -> Any:
    if tokenizer.pre_tokenizer is None:
        return None
    return json.loads(tokenizer.pre_tokenizer.__getstate__())


def _knows_first_piece(tokenizer: Tokenizer) -> bool:
    return '"prepend_scheme": "first"' in json.dumps(_pre_tokenizer_state(tokenizer))


def _never_first(tokenizer: Tokenizer) -> Any:
    state = json.dumps(_pre_tokenizer_state(tokenizer))
    shell = json.loads(Tokenizer(models.BPE()).to_str())
    shell["pre_tokenizer"] = json.loads(
        state.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
    )
    return Tokenizer.from_str(json.dumps(shell)).pre_tokenizer
