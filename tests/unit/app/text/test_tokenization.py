"""Messages to token ids: the template's control tokens, and only those."""

import asyncio
import json
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.errors import EngineError, InvalidRequestError
from app.text.chat_template import ChatTemplate
from app.text.tokenization import ModelTokenizer, TokenizerCache
from cache_tiers.keys import BlockKey, block_keys
from engine.messages import ModelCard
from tests.unit.app.fakes import CHATML, EOS_ID, IM_START_ID, TOKENIZER, make_card
from tests.unit.app.tokenizer_kinds import CHAT_KINDS, CONTROL, llama3, normalized_control

MODEL = ModelTokenizer(make_card())
SPECIAL_IDS = {IM_START_ID, EOS_ID}


TURNS = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>"
    "{{ '\n' if not loop.last }}{% endfor %}<|turn|>assistant\n"
)
TEMPLATES = {
    "begins with BOS": "{{ bos_token }}" + TURNS,
    "begins with text": "the conversation " + TURNS,
    "spaces around": " {{ bos_token }}" + TURNS.replace("<|end|>", " <|end|>  <mask>"),
    "no control tokens": "{{ messages | map(attribute='content') | join(' ') }}",
}
WORDS = [
    *("the house", " ", "  ", "\n", "\n\n", "\n\n\n", "\t", "1234", "'s", "<table>", "<tool_call>"),
    *("é", "e\u0301", "\u0301", "漢字", "👩\u200d👧", "▁", "\ue000", "<|turn", "x"),
]
# hypothesis knows the strings of this code; what users spell of control tokens is not read as such.
WRITTEN = (st.lists(st.sampled_from(WORDS), max_size=8).map("".join) | st.text(max_size=8)).filter(
    lambda text: not any(token in text for token in CONTROL)
)


@cache
def model_of(kind: str, template: str) -> tuple[ModelTokenizer, Tokenizer]:
    tokenizer = CHAT_KINDS[kind]()
    card = with_template(
        template, tokenizer_json=tokenizer.to_str().encode(), vocab_size=10**6, bos_token="<s>"
    )
    return ModelTokenizer(card), tokenizer


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def with_template(template: str | None, **fields: Any) -> ModelCard:
    return msgspec.structs.replace(make_card(), chat_template=template, **fields)


def test_a_conversation_is_tokenized_as_the_template_renders_it() -> None:
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    expected = TOKENIZER.encode(rendered, add_special_tokens=False).ids
    assert MODEL.encode_chat(user("Hi")) == expected


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "x", "\ue000"])))
@settings(deadline=None)
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


def test_only_the_new_turn_of_a_conversation_is_tokenized() -> None:
    model = ModelTokenizer(make_card())
    messages = user("What is the capital of France?")
    before = model.encode_chat(messages)
    assert model._chat is not None
    cache = model._chat._encoder._cache
    marked = array("I", [7, 7, 7])
    for key in list(cache._ids_of):  # whatever is known is taken from here, and shows
        cache.put(key, marked)
    answered = [*messages, {"role": "assistant", "content": "Paris, of course."}]
    token_ids = model.encode_chat([*answered, *user("And of Spain?")])
    assert token_ids[:5] == [before[0], 7, 7, 7, EOS_ID]
    new = token_ids[5:]
    assert "Paris, of course." in model.decode(new)
    assert "And of Spain?" in model.decode(new)
    assert "France" not in model.decode(token_ids)


def test_only_prompts_with_the_same_salt_share_keys() -> None:
    plain, salted, again, other = (
        MODEL.completion_prompt([1] * 40, cache_salt=salt) for salt in (None, "a", "a", "b")
    )
    assert salted.block_keys == again.block_keys
    keys = [prompt.block_keys for prompt in (plain, salted, other)]
    assert len(set().union(*keys)) == sum(map(len, keys)) == 6
    assert salted.block_keys == block_keys(BlockKey(salted.root_key), [1] * 40, 16)
    assert salted.card_root_key == MODEL.card.root_key


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


async def test_the_cards_of_prepared_replicas_share_one_file() -> None:
    cache = TokenizerCache()
    first = await cache.prepare(make_card("e0"))
    second = await cache.prepare(make_card("e1"))
    assert second.engine_id == "e1"
    assert second.tokenizer_json is first.tokenizer_json
    assert (await cache.get(second)) is (await cache.get(first))


async def test_a_replica_whose_tokenizer_cannot_be_read_joins_and_its_requests_fail() -> None:
    cache = TokenizerCache()
    card = await cache.prepare(with_template(CHATML, tokenizer_json=b"{broken"))
    with pytest.raises(EngineError):
        await cache.get(card)


async def test_another_template_for_the_same_weights_is_built_anew() -> None:
    cache = TokenizerCache()
    old = await cache.get(make_card())
    new = await cache.get(with_template("{{ 'new' }}"))
    assert new.encode_chat(user("Hi")) != old.encode_chat(user("Hi"))


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("kind", CHAT_KINDS)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), WRITTEN), min_size=1))
@settings(max_examples=12, deadline=None)
def test_pieces_make_the_tokens_of_the_whole(
    kind: str, template: str, turns: list[tuple[str, str]]
) -> None:
    model, tokenizer = model_of(kind, template)
    messages = [{"role": role, "content": content} for role, content in turns]
    chat_template = ChatTemplate(template, bos_token="<s>", eos_token=None)
    rendered = chat_template.render(messages)
    # Two texts may spell a control token together, which then isn't read as one either.
    of_template = chat_template.render([{**message, "content": "x"} for message in messages])
    assume(all(rendered.count(token) == of_template.count(token) for token in CONTROL))
    expected = tokenizer.encode(rendered, add_special_tokens=False).ids
    assert model.encode_chat(messages) == expected, rendered
    assert model.encode_chat(messages) == expected, "from the cache"


def test_a_tokenizer_that_cannot_be_cut_reads_the_whole() -> None:
    tokenizer = normalized_control()
    card = with_template(TURNS, tokenizer_json=tokenizer.to_str().encode())
    rendered = ChatTemplate(TURNS, bos_token=None, eos_token=None).render(user("e\u0301"))
    expected = tokenizer.encode(rendered, add_special_tokens=False).ids
    assert ModelTokenizer(card).encode_chat(user("e\u0301")) == expected


@pytest.mark.parametrize("kind", CHAT_KINDS)
@given(st.lists(st.sampled_from([*CONTROL, "<|tu", "<|", "rn|>", "x", " "]), max_size=6))
@settings(max_examples=12, deadline=None)
def test_no_kind_of_tokenizer_lets_users_write_control_tokens(kind: str, parts: list[str]) -> None:
    model, tokenizer = model_of(kind, TEMPLATES["begins with BOS"])
    control = [tokenizer.token_to_id(content) for content in CONTROL]
    token_ids = model.encode_chat(user("".join(parts)))
    written = [token_id for token_id in token_ids if token_id in control]
    bos, _, turn, end = control
    assert written == [bos, turn, end, turn]


@pytest.mark.parametrize("cut", range(1, len("<|im_end|>")))
def test_two_texts_of_a_user_do_not_make_a_control_token_together(cut: int) -> None:
    template = "{{ messages[0].name }}{{ messages[0].content }}"
    message = {"role": "user", "name": "<|im_end|>"[:cut], "content": "<|im_end|>"[cut:]}
    token_ids = ModelTokenizer(with_template(template)).encode_chat([message])
    assert not SPECIAL_IDS & {*token_ids}
    assert TOKENIZER.decode(token_ids) == "<|im_end|>"


def test_control_tokens_in_tools_and_template_arguments_are_text_too() -> None:
    model = ModelTokenizer(with_template("{{ tools | tojson }}{{ language }}<|im_end|>"))
    tools = [{"type": "function", "function": {"name": "<|im_end|>", "<|im_start|>": [1]}}]
    kwargs = {"language": "<|im_end|>"}
    token_ids = model.encode_chat(user("Hi"), tools=tools, template_kwargs=kwargs)
    assert [token_id for token_id in token_ids if token_id in SPECIAL_IDS] == [EOS_ID]
    shown = TOKENIZER.decode(token_ids, skip_special_tokens=False)
    assert shown == json.dumps(tools) + "<|im_end|><|im_end|>"


def test_control_tokens_in_a_long_text_are_found_wherever_they_stand() -> None:
    for num_before in (32_760, 32_765, 32_768, 65_530):
        token_ids = MODEL.encode_chat(user("x" * num_before + "<|im_end|>" + "y" * 40_000))
        assert token_ids.count(EOS_ID) == 1


def test_control_tokens_act_in_the_text_of_a_completion() -> None:
    assert MODEL.completion_prompt("a<|im_end|>").token_ids[1:] == [EOS_ID]


@pytest.mark.parametrize(
    ("text", "num_bos"), [("Hi", 1), ("<s>Hi", 1), ("<s><s>Hi", 2), ("Hi<s>", 2)]
)
def test_a_completion_gets_one_bos_unless_it_brings_its_own(text: str, num_bos: int) -> None:
    tokenizer = llama3()
    card = with_template(
        None, tokenizer_json=tokenizer.to_str().encode(), vocab_size=1000, bos_token="<s>"
    )
    model = ModelTokenizer(card)
    (bos_id,) = tokenizer.encode("<s>", add_special_tokens=False).ids
    assert model.completion_prompt(text).token_ids.count(bos_id) == num_bos
    plain = model.completion_prompt(text, add_special_tokens=False).token_ids
    assert plain.count(bos_id) == text.count("<s>")


def test_token_ids_are_a_prompt_as_they_are() -> None:
    prompt = MODEL.completion_prompt([1, EOS_ID, 2])
    assert prompt.token_ids == [1, EOS_ID, 2]


@pytest.mark.parametrize("token_ids", [[], [-1], [1, 258], [2**40]])
def test_token_ids_that_the_model_does_not_know_are_refused(token_ids: list[int]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        MODEL.completion_prompt(token_ids)
    assert caught.value.param == "prompt"


def test_the_keys_of_a_long_prompt_are_one_chain() -> None:
    token_ids = [number % 256 for number in range(20_010)]
    prompt = MODEL.completion_prompt(token_ids)
    assert prompt.block_keys == block_keys(BlockKey(MODEL.card.root_key), token_ids, 16)


def test_a_limit_or_padding_of_the_file_does_not_change_prompts() -> None:
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    model = ModelTokenizer(with_template(CHATML, tokenizer_json=tokenizer.to_str().encode()))
    assert model.encode_chat(user("Hello")) == MODEL.encode_chat(user("Hello"))
    assert model.completion_prompt("Hello").token_ids == MODEL.completion_prompt("Hello").token_ids


def test_threads_share_a_tokenizer() -> None:
    model = ModelTokenizer(make_card())
    conversations = [[*user("same"), *user(f"other {number % 7}")] for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        encoded = list(threads.map(model.encode_chat, conversations))
    assert encoded == [MODEL.encode_chat(conversation) for conversation in conversations]


def test_a_bound_for_the_length_needs_no_tokenizing() -> None:
    assert MODEL.min_num_tokens("x" * 100) <= len(MODEL.completion_prompt("x" * 100).token_ids)
    assert MODEL.min_num_tokens(user("x" * 100)) == MODEL.min_num_tokens("x" * 100) > 0


@pytest.mark.parametrize("kind", CHAT_KINDS)
@given(st.text(max_size=30) | st.text(" \n▁e\u0301", max_size=30))
@settings(max_examples=20, deadline=None)
def test_the_bound_is_below_the_length(kind: str, text: str) -> None:
    model, _ = model_of(kind, TURNS)
    token_ids = model.encode_text(text, add_special_tokens=False)
    assert model.min_num_tokens(text) <= len(token_ids)
    if kind != "qwen2":
        assert model.min_num_tokens("x" * 1000) > 10


async def test_a_tokenizer_that_cannot_be_read_is_a_clear_error() -> None:
    card = with_template(CHATML, tokenizer_json=b"{broken")
    with pytest.raises(EngineError, match="tokenizer of `m` cannot be read"):
        await TokenizerCache().get(card)
