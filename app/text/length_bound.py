"""How few tokens a text can have, told without tokenizing it."""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer


class LengthBound:
    """Of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._max_token_chars = _max_token_chars(tokenizer)
        self._may_shorten = _may_shorten(tokenizer.normalizer)

    def min_num_tokens(self, num_chars: int) -> int:
        """Of a text of so many characters."""
        return 0 if self._may_shorten else num_chars // self._max_token_chars


def _max_token_chars(tokenizer: Tokenizer) -> int:
    names = map(tokenizer.id_to_token, range(tokenizer.get_vocab_size()))
    return max((len(name) for name in names if name), default=1)


def _may_shorten(normalizer: Any) -> bool:
    """Whether a normalizer can make fewer characters of a text."""
    if normalizer is None:
        return False
    state = json.loads(normalizer.__getstate__())
    return not all(
        step["type"] == "Prepend"
        or (step["type"] == "Replace" and _is_no_longer(step["pattern"], step["content"]))
        for step in state.get("normalizers", [state])
    )


def _is_no_longer(pattern: Mapping[str, str], content: str) -> bool:
    return 0 < len(pattern.get("String", "")) <= len(content)
