"""A conversation to token ids: renders the template, then reads its text piece by piece.

Text of users never yields control tokens: special tokens are only those that the template itself
writes. Added tokens that the model's makers did not mark as special (such as ``<think>``) are words
that models write, too: they are read as such wherever they stand. Must not know prompts, block keys
or models' names.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from app.text.chat_template import ChatTemplate, Message
from app.text.give_way import give_way
from app.text.segment_cache import SegmentCache
from app.text.segment_encoder import SegmentEncoder, encode_text
from app.text.special_tokens import SpecialTokens, replace_texts

_MAX_CACHE_BYTES = 32 << 20
"""8 million tokens, some thousand conversations of 3,000 tokens each."""


class ChatEncoder:
    """Of one model; used from any thread."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._special = SpecialTokens(tokenizer)
        self._encoder = SegmentEncoder(tokenizer, SegmentCache(_MAX_CACHE_BYTES))

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The token ids of the rendered template."""
        marks = None
        if self._special.are_spelled_in((messages, tools, template_kwargs)):
            marks = _Marks()
            messages, tools, template_kwargs = replace_texts(
                (messages, tools, template_kwargs), self._special.marking(marks.mark_of)
            )
        rendered = self._template.render(
            messages,
            tools=tools,
            template_kwargs=template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        if marks is None and not self._special.are_boundaries:
            return encode_text(self._tokenizer, rendered, add_special_tokens=False)
        return self._encode_pieces(rendered, marks)

    def _encode_pieces(self, rendered: str, marks: "_Marks | None") -> list[int]:
        """Every piece between special tokens by itself, so that it is only tokenized once."""
        pieces: list[str] = []
        order: list[int | None] = []  # ids of special tokens, and None where a piece stands
        position = 0
        for span in [*self._special.find(rendered), None]:
            piece = rendered[position : len(rendered) if span is None else span.start]
            if piece:
                pieces.append(piece if marks is None else marks.restored(piece))
                order.append(None)
            if span is not None:
                order.append(self._special.id_of[span.token])
                position = span.end
        encoded = iter(self._encoder.encode(pieces, is_first=order[:1] == [None]))
        token_ids: list[int] = []
        for token_id in order:
            if token_id is None:
                token_ids += next(encoded)
                give_way(len(token_ids))
            else:
                token_ids.append(token_id)
        return token_ids


class _Marks:
    """Stand-ins for special tokens that a user spelled, while the template is rendered, so that
    those left in the text are the template's own.
    """

    def __init__(self) -> None:
        # Digits between private-use characters: no filter of a template changes them, no user can
        # guess them.
        self._nonce = secrets.randbelow(10**18)
        self._texts: list[str] = []
        self._mark_of: dict[str, str] = {}
        self._pattern = re.compile(f"\ue000{self._nonce}:([0-9]+)\ue001")

    def mark_of(self, text: str) -> str:
        mark = self._mark_of.get(text)
        if mark is None:
            mark = self._mark_of[text] = f"\ue000{self._nonce}:{len(self._texts)}\ue001"
            self._texts.append(text)
        return mark

    def restored(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._texts[int(match[1])], text)
