"""Messages to a prompt's token ids and block keys, once per request, at the gateway.

Text of users never yields control tokens: special tokens are only those that the template itself
writes. Must not know HTTP, queues or engines beyond their ``ModelCard``.
"""

import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from app.chat_template import ChatTemplate, Message
from app.detokenizer import Detokenizer, create_detokenizer_factory
from app.errors import InvalidRequestError
from cache_tiers.keys import BlockKey, block_keys
from engine.messages import KEY_STRIDE, ModelCard

_MAX_CACHED_MODELS = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized conversation."""

    token_ids: list[int]
    root_key: bytes
    block_keys: list[bytes]

    @property
    def index_keys(self) -> list[bytes]:
        """Those of ``block_keys`` that a prefix index keeps."""
        return self.block_keys[KEY_STRIDE - 1 :: KEY_STRIDE]


class ModelTokenizer:
    """Tokenizer and chat template of one model; immutable, used from any thread."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self._tokenizer = Tokenizer.from_buffer(card.tokenizer_json)
        self._plain = Tokenizer.from_buffer(card.tokenizer_json)
        self._plain.encode_special_tokens = True  # reads special tokens as ordinary text
        self._create_detokenizer = create_detokenizer_factory(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = {token.content: id_ for id_, token in added.items() if token.special}
        self._max_token_chars = max(map(len, self._tokenizer.get_vocab()))
        by_length = sorted(self._special_ids, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, by_length)) or r"(?!)")
        self._template = (
            None
            if card.chat_template is None
            else ChatTemplate(
                card.chat_template, bos_token=card.bos_token, eos_token=card.eos_token
            )
        )

    def create_detokenizer(self) -> Detokenizer:
        """The state of one answer."""
        return self._create_detokenizer()

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Template, tokenize and key the conversation; takes about 1 ms per 4,000 characters."""
        token_ids = self.encode_chat(messages)
        if not token_ids:
            raise InvalidRequestError("The messages make an empty prompt.", param="messages")
        if max(token_ids) >= self.card.vocab_size:  # engines refuse it, and retries cannot help
            token = self._tokenizer.id_to_token(max(token_ids))
            raise InvalidRequestError(
                f"The model does not know the token {token!r}.", param="messages"
            )
        root = BlockKey(self.card.root_key)
        keys = block_keys(root, token_ids, self.card.block_size_tokens)
        return Prompt(token_ids=token_ids, root_key=root, block_keys=list[bytes](keys))

    def min_num_tokens(self, messages: Sequence[Message]) -> int:
        """A lower bound for the prompt's length that costs no tokenizing."""
        if self._tokenizer.normalizer is not None:
            return 0  # it may shorten the text
        num_chars = sum(len(message["content"]) for message in messages)
        return num_chars // self._max_token_chars

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of the rendered template, without a second BOS."""
        if self._template is None:
            raise InvalidRequestError(
                f"The model `{self.card.model}` has no chat template.", param="model"
            )
        if not any(_contains(message, self._special_pattern) for message in messages):
            return self._tokenizer.encode(
                self._template.render(messages), add_special_tokens=False
            ).ids
        return self._encode_guarded(self._template, messages)

    def _encode_guarded(self, template: ChatTemplate, messages: Sequence[Message]) -> list[int]:
        """Encode messages that spell special tokens: those are swapped for a mark while the
        template is rendered, so that the special tokens left in the text are the template's own.
        """
        # Digits between private-use characters: no filter of a template changes them, no user can
        # guess them.
        nonce = secrets.randbelow(10**18)
        spelled = sorted(self._special_ids, key=len, reverse=True)
        mark_of = {text: f"\ue000{nonce}{index}\ue001" for index, text in enumerate(spelled)}
        text_of = {mark: text for text, mark in mark_of.items()}
        marks = re.compile(f"\ue000{nonce}[0-9]+\ue001")
        guarded = [
            _substitute(message, self._special_pattern, lambda match: mark_of[match[0]])
            for message in messages
        ]
        rendered = template.render(guarded)
        token_ids: list[int] = []
        start = 0
        for control in [*self._special_pattern.finditer(rendered), None]:
            end = len(rendered) if control is None else control.start()
            plain = marks.sub(lambda match: text_of[match[0]], rendered[start:end])
            if plain:
                token_ids += self._plain.encode(plain, add_special_tokens=False).ids
            if control is not None:
                token_ids.append(self._special_ids[control[0]])
                start = control.end()
        return token_ids


class _Built(NamedTuple):
    """A tokenizer that is being built, or was."""

    card: ModelCard
    fingerprint: bytes
    task: asyncio.Task[ModelTokenizer]


class TokenizerCache:
    """Builds the tokenizer of a model once, in a thread, and keeps the last few."""

    def __init__(self) -> None:
        self._built: OrderedDict[bytes, _Built] = OrderedDict()

    async def get(self, card: ModelCard) -> ModelTokenizer:
        """The tokenizer of ``card``'s weights.

        The first call takes some 100 ms, off the event loop.
        """
        built = self._built.get(card.root_key)
        if built is None or built.card is not card:
            built = self._find_or_start(card, built)
        if built.task.done():
            return built.task.result()
        return await asyncio.shield(built.task)

    def _find_or_start(self, card: ModelCard, built: _Built | None) -> _Built:
        """Another replica's card mostly says the same; megabytes are hashed only to find out."""
        digest = hashlib.sha256(card.tokenizer_json)
        digest.update((card.chat_template or "").encode())
        fingerprint = digest.digest()
        if built is None or built.fingerprint != fingerprint:
            task = asyncio.create_task(asyncio.to_thread(ModelTokenizer, card))
        else:
            task = built.task
        built = self._built[card.root_key] = _Built(card, fingerprint, task)
        self._built.move_to_end(card.root_key)
        if len(self._built) > _MAX_CACHED_MODELS:
            self._built.popitem(last=False)
        return built


def _contains(value: Any, pattern: re.Pattern[str]) -> bool:
    if isinstance(value, str):
        return pattern.search(value) is not None
    if isinstance(value, Mapping):  # its keys are the client's words, too
        return any(_contains(item, pattern) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return any(_contains(item, pattern) for item in value)
    return False


def _substitute(value: Any, pattern: re.Pattern[str], mark: Any) -> Any:
    if isinstance(value, str):
        return pattern.sub(mark, value)
    if isinstance(value, Mapping):
        return {
            _substitute(key, pattern, mark): _substitute(item, pattern, mark)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_substitute(item, pattern, mark) for item in value]
    return value
