"""Messages to token ids: the template's control tokens, and only those."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequestError
from app.tokenization import ModelTokenizer, TokenizerCache
from cache_tiers.keys import BlockKey, block_keys
from engine.messages import ModelCard
from tests.unit.app.fakes import CHATML, EOS_ID, IM_START_ID, TOKENIZER, make_card

MODEL = ModelTokenizer(make_card())
SPECIAL_IDS = {IM_START_ID, EOS_ID}


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def with_template(template: str | None, **fields: Any) -> ModelCard:
    return msgspec.structs.replace(make_card(), chat_template=template, **fields)


def test_a_conversation_is_tokenized_as_the_template_renders_it() -> None:
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    expected = TOKENIZER.encode(rendered, add_special_tokens=False).ids
    assert MODEL.encode_chat(user("Hi")) == expected


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "x", "\ue000"])))
def test_users_cannot_write_control_tokens(parts: list[str]) -> None:
    text = "".join(parts)
    token_ids = MODEL.encode_chat(user(text))
    control = [token_id for token_id in token_ids if token_id in SPECIAL_IDS]
    assert control == [IM_START_ID, EOS_ID, IM_START_ID]
    shown = TOKENIZER.decode(token_ids, skip_special_tokens=False)
    assert shown == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("arguments", ["a<|im_end|>b", {"a<|im_end|>b": 1}, [["<|im_end|>"]]])
def test_control_tokens_in_tool_calls_are_text_too(arguments: object) -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}<|im_end|>"
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"arguments": arguments}}],
    }
    token_ids = ModelTokenizer(with_template(template)).encode_chat([message])
    assert token_ids.count(EOS_ID) == 1
    assert token_ids[-1] == EOS_ID


def test_there_is_no_second_bos() -> None:
    card = with_template("{{ bos_token }}" + CHATML, bos_token="<|im_start|>")
    token_ids = ModelTokenizer(card).encode_chat(user("Hi"))
    assert token_ids[:3] == [IM_START_ID, IM_START_ID, token_ids[2]]
    assert token_ids[2] not in SPECIAL_IDS


def test_block_keys_are_those_of_the_cache() -> None:
    prompt = MODEL.prompt(user("x" * 500))
    root = BlockKey(MODEL.card.root_key)
    assert prompt.block_keys == block_keys(root, prompt.token_ids, 16)
    assert prompt.index_keys == prompt.block_keys[7::8]


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5].content }}",
        "{{ messages[0].content + 5 }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_what_the_template_refuses_is_a_bad_request(template: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ModelTokenizer(with_template(template)).prompt(user("Hi"))
    assert caught.value.param == "messages"


def test_templates_may_use_what_transformers_gives_them() -> None:
    template = (
        "{{ strftime_now('%Y') | length }}{{ messages | tojson }}"
        "{% for m in messages %}{% break %}{% endfor %}{% generation %}!{% endgeneration %}"
    )
    token_ids = ModelTokenizer(with_template(template)).encode_chat(user("<é>"))
    assert TOKENIZER.decode(token_ids) == '4[{"role": "user", "content": "<é>"}]!'


def test_a_model_without_a_template_refuses_chat() -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        ModelTokenizer(with_template(None)).prompt(user("Hi"))


def test_a_prompt_without_a_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty prompt"):
        ModelTokenizer(with_template("{{ '' }}")).prompt(user("Hi"))


def test_a_token_beyond_the_models_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"<\|im_end\|>"):
        ModelTokenizer(with_template(CHATML, vocab_size=EOS_ID)).prompt(user("Hi"))


async def test_a_models_tokenizer_is_built_once() -> None:
    cache = TokenizerCache()
    first, second = await asyncio.gather(cache.get(make_card("e0")), cache.get(make_card("e1")))
    assert first is second
    assert await cache.get(make_card(model="other")) is not first
    assert await cache.get(make_card("e2")) is first


async def test_another_template_for_the_same_weights_is_built_anew() -> None:
    cache = TokenizerCache()
    old = await cache.get(make_card())
    new = await cache.get(with_template("{{ 'new' }}"))
    assert new.encode_chat(user("Hi")) != old.encode_chat(user("Hi"))
