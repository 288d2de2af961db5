"""Messages or text to a prompt's token ids and block keys, once per request, at the gateway.

Must not know HTTP, queues or engines beyond their ``ModelCard``.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
from tokenizers import Tokenizer

from app.errors import EngineError, InvalidRequestError
from app.text.chat_encoder import ChatEncoder
from app.text.chat_template import ChatTemplate, Message
from app.text.detokenizer import Detokenizer, create_detokenizer_factory
from app.text.give_way import give_way
from app.text.length_bound import LengthBound
from app.text.segment_encoder import encode_text
from app.text.token_text import TokenText, create_token_texts
from cache_tiers.keys import BlockKey, block_keys, salted_root
from engine.messages import KEY_STRIDE, ModelCard

logger = logging.getLogger(__name__)

_MAX_CACHED_MODELS = 16
_KEYED_AT_ONCE = 8192
"""Tokens: a quarter of a millisecond's work."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized conversation or text."""

    token_ids: list[int]
    root_key: bytes
    """Parent of the first block key: the model's, salted if the client asked for it."""
    block_keys: list[bytes]
    card_root_key: bytes
    """The model's own: engines with another one hold other weights."""

    @property
    def index_keys(self) -> list[bytes]:
        """Those of ``block_keys`` that a prefix index keeps."""
        return self.block_keys[KEY_STRIDE - 1 :: KEY_STRIDE]

    def extended(self, token_ids: Sequence[int], block_size_tokens: int) -> "Prompt":
        """With ``token_ids`` behind it."""
        num_full = len(self.block_keys)
        parent = BlockKey(self.block_keys[-1] if num_full else self.root_key)
        rest = [*self.token_ids[num_full * block_size_tokens :], *token_ids]
        return replace(
            self,
            token_ids=[*self.token_ids, *token_ids],
            block_keys=[*self.block_keys, *block_keys(parent, rest, block_size_tokens)],
        )


class ModelTokenizer:
    """Tokenizer and chat template of one model; used from any thread."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        tokenizer = Tokenizer.from_buffer(card.tokenizer_json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._texts = create_token_texts(tokenizer)
        self._create_detokenizer = create_detokenizer_factory(tokenizer)
        self._bound = LengthBound(tokenizer)
        self._template = _template_of(card)
        self._chat = None if self._template is None else ChatEncoder(tokenizer, self._template)

    @property
    def is_slow(self) -> bool:
        """Whether even short conversations belong into a thread: the chat template is slow."""
        return self._template is not None and self._template.is_slow

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        cache_salt: str | None = None,
    ) -> Prompt:
        """Template, tokenize and key a conversation; about 1 ms per 4,000 characters that were not
        seen before. Only prompts with the same ``cache_salt`` share KV.
        """
        token_ids = self.encode_chat(
            messages,
            tools=tools,
            template_kwargs=template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self._prompt_of(token_ids, cache_salt, param="messages")

    def completion_prompt(
        self,
        prompt: str | Sequence[int],
        add_special_tokens: bool = True,
        cache_salt: str | None = None,
    ) -> Prompt:
        """Key a text or token ids that are the whole prompt: special tokens in the text act."""
        if isinstance(prompt, str):
            token_ids = self.encode_text(prompt, add_special_tokens=add_special_tokens)
        else:
            token_ids = list(prompt)
        return self._prompt_of(token_ids, cache_salt, param="prompt")

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The token ids of the rendered template, without a second BOS."""
        if self._chat is None:
            raise InvalidRequestError(
                f"The model `{self.card.model}` has no chat template: use /v1/completions.",
                param="model",
            )
        return self._chat.encode(
            messages,
            tools=tools,
            template_kwargs=template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )

    def encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """With the special tokens that it spells, and those that the tokenizer puts around a text;
        never a second BOS.
        """
        token_ids = encode_text(self._tokenizer, text, add_special_tokens=add_special_tokens)
        bos = self.card.bos_token
        if add_special_tokens and bos and text.startswith(bos):
            bos_id = self._tokenizer.token_to_id(bos)
            if token_ids[:2] == [bos_id, bos_id]:
                return token_ids[1:]
        return token_ids

    def min_num_tokens(self, prompt: Sequence[Message] | str) -> int:
        """A lower bound for the prompt's length that costs no tokenizing."""
        texts = [prompt] if isinstance(prompt, str) else [turn["content"] for turn in prompt]
        return self._bound.min_num_tokens(sum(map(len, texts)))

    def create_detokenizer(self) -> Detokenizer:
        """The state of one answer."""
        return self._create_detokenizer()

    def decode(self, token_ids: Sequence[int]) -> str:
        """As a detokenizer shows them: without special tokens and unknown ids."""
        detokenizer = self._create_detokenizer()
        return "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])

    def decode_prompt(self, token_ids: Sequence[int]) -> str:
        """With the special tokens, as they are spelled."""
        (text,) = self._tokenizer.decode_batch([token_ids], skip_special_tokens=False)
        return str(text)

    def token_text(self, token_id: int) -> TokenText:
        """What log probabilities show of a token."""
        return self._texts.of(token_id)

    def token_name(self, token_id: int) -> str:
        """As it stands in the vocabulary; empty for an id that it lacks."""
        return self._texts.name_of(token_id)

    def _prompt_of(self, token_ids: list[int], cache_salt: str | None, *, param: str) -> Prompt:
        if not token_ids:
            raise InvalidRequestError(f"'{param}' makes an empty prompt.", param=param)
        lowest, highest = min(token_ids), max(token_ids)
        give_way(len(token_ids))
        if lowest < 0 or highest >= self.card.vocab_size:  # retries on other engines cannot help
            unknown = lowest if lowest < 0 else highest
            name = self.token_name(unknown)
            shown = f"{name!r} ({unknown})" if name else str(unknown)
            raise InvalidRequestError(f"The model does not know the token {shown}.", param=param)
        root = BlockKey(self.card.root_key)
        if cache_salt is not None:
            root = salted_root(root, cache_salt)
        keys: list[bytes] = [*_block_keys(root, token_ids, self.card.block_size_tokens)]
        return Prompt(
            token_ids=token_ids,
            root_key=root,
            block_keys=keys,
            card_root_key=self.card.root_key,
        )


def _template_of(card: ModelCard) -> ChatTemplate | None:
    if card.chat_template is None:
        return None
    return ChatTemplate(card.chat_template, bos_token=card.bos_token, eos_token=card.eos_token)


def _block_keys(root: BlockKey, token_ids: Sequence[int], block_size: int) -> Iterator[BlockKey]:
    stride = max(1, _KEYED_AT_ONCE // block_size) * block_size
    parent = root
    for start in range(0, len(token_ids), stride):
        keys = block_keys(parent, token_ids[start : start + stride], block_size)
        yield from keys
        parent = keys[-1] if keys else parent
        give_way(len(keys) * block_size)


class _Built(NamedTuple):
    """A tokenizer that is being built, or was."""

    card: ModelCard
    task: asyncio.Task[ModelTokenizer]


class TokenizerCache:
    """Builds the tokenizer of a model once, in a thread, and keeps the last few."""

    def __init__(self) -> None:
        self._built: OrderedDict[bytes, _Built] = OrderedDict()

    async def prepare(self, card: ModelCard) -> ModelCard:
        """Build the tokenizer before a request needs it: large ones hold the interpreter lock for a
        second.

        Returns ``card``, whose megabytes are those of the other replicas' cards from now on.
        """
        try:
            tokenizer = await self.get(card)
        except EngineError:
            logger.exception("engine %s: every request will fail", card.engine_id)
            return card
        return msgspec.structs.replace(card, tokenizer_json=tokenizer.card.tokenizer_json)

    async def get(self, card: ModelCard) -> ModelTokenizer:
        """The tokenizer of ``card``'s weights.

        The first call takes some 100 ms, off the event loop.
        """
        built = self._built.get(card.root_key)
        if built is None or not _read_alike(built.card, card):
            built = self._start(card)
        if built.task.done():
            return built.task.result()
        return await asyncio.shield(built.task)

    def _start(self, card: ModelCard) -> _Built:
        task = asyncio.create_task(asyncio.to_thread(_build, card))
        built = self._built[card.root_key] = _Built(card, task)
        self._built.move_to_end(card.root_key)
        if len(self._built) > _MAX_CACHED_MODELS:
            self._built.popitem(last=False)
        return built


def _read_alike(card: ModelCard, other: ModelCard) -> bool:
    """Whether one tokenizer does for both; fast for prepared cards, which share the file."""
    return (
        card.tokenizer_json == other.tokenizer_json
        and card.chat_template == other.chat_template
        and card.bos_token == other.bos_token
        and card.eos_token == other.eos_token
    )


def _build(card: ModelCard) -> ModelTokenizer:
    try:
        return ModelTokenizer(card)
    except BaseException as error:  # a panic in ``tokenizers`` is no Exception
        raise EngineError(f"The tokenizer of `{card.model}` cannot be read.") from error
