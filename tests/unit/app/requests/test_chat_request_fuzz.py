"""Whatever JSON comes in: it is understood, or refused as a bad request with a field of its own."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidRequestError
from app.requests.body import parse_json_object
from app.requests.chat_request import ChatRequest, parse_chat_request
from app.requests.completion_request import CompletionRequest, parse_completion_request
from app.requests.sampling import sampling_params
from app.requests.sampling_fields import SamplingFields
from app.requests.tokenize_request import (
    DetokenizeRequest,
    TokenizeRequest,
    parse_detokenize_request,
    parse_tokenize_request,
)
from app.text.tokenization import ModelTokenizer
from engine.messages import SamplingParams
from tests.unit.app.fakes import make_card

CARD = make_card(max_model_len=100_000)
TOKENIZER = ModelTokenizer(CARD)

TEXT = st.text(max_size=8) | st.sampled_from(["text", "user", "tool", "<|im_end|>", "none", "5"])
SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-2, 30) | st.floats() | TEXT
KEYS = TEXT | st.sampled_from(
    ["role", "content", "name", "tool_calls", "type", "text", "function", "arguments"]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
PART = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        "content": TEXT | st.lists(PART, max_size=2) | JSON,
    },
    optional={
        "tool_calls": st.lists(st.dictionaries(KEYS, JSON, max_size=2), max_size=2),
        "name": TEXT,
    },
)
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=2) | JSON
PROMPT = TEXT | st.lists(TEXT) | st.lists(st.integers(0, 300)) | JSON


def body(names: Sequence[str], **required: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """With up to two of the optional fields ``names``, whatever they hold."""
    optional = st.dictionaries(st.sampled_from(sorted(names)), JSON, max_size=2)
    whole = st.builds(
        lambda own, more: more | own, st.fixed_dictionaries({"model": TEXT, **required}), optional
    )
    return whole | JSON


def sent(value: Any) -> dict[str, Any]:
    return parse_json_object(json.dumps(value).encode())


def check_refusal(error: InvalidRequestError, value: Any, names: Sequence[str]) -> None:
    """A body that is no object at all has no field to name."""
    name = (error.param or "").split("[")[0].split(".")[0]
    assert not isinstance(value, dict) or name in names


def check_sampling(sampling: SamplingParams, request: SamplingFields) -> None:
    assert 0 <= sampling.seed < 2**64
    assert 0 <= sampling.temperature <= 2
    assert 0 <= sampling.min_tokens <= sampling.max_tokens <= CARD.max_model_len
    assert all(0 <= token_id < CARD.vocab_size for token_id in sampling.stop_token_ids)
    options = request.options()
    assert 1 <= options.num_choices <= options.num_samples <= 16


CHAT_NAMES = [*ChatRequest.model_fields, *ChatRequest.refused]
COMPLETION_NAMES = [*CompletionRequest.model_fields, *CompletionRequest.refused]


@given(body(CHAT_NAMES, messages=MESSAGES))
@settings(max_examples=300)
def test_any_chat_is_answered_or_refused(value: Any) -> None:
    try:
        request = parse_chat_request(sent(value), max_fanout=16)
        prompt = TOKENIZER.prompt(
            [message.for_template() for message in request.messages],
            tools=request.template_tools(),
            template_kwargs=request.template_kwargs(),
            add_generation_prompt=request.adds_generation_prompt,
            continue_final_message=request.continues_final_message,
        )
        sampling = sampling_params(request, len(prompt.token_ids), CARD)
    except InvalidRequestError as error:
        check_refusal(error, value, CHAT_NAMES)
        return
    check_sampling(sampling, request)


@given(body(COMPLETION_NAMES, prompt=PROMPT))
@settings(max_examples=300)
def test_any_completion_is_answered_or_refused(value: Any) -> None:
    try:
        request = parse_completion_request(sent(value), max_fanout=16)
        sampling = sampling_params(request, max(map(len, request.prompts())), CARD)
    except InvalidRequestError as error:
        check_refusal(error, value, COMPLETION_NAMES)
        return
    check_sampling(sampling, request)


@given(body(list(TokenizeRequest.model_fields), tokens=PROMPT))
@settings(max_examples=200)
def test_any_text_or_ids_are_taken_or_refused(value: Any) -> None:
    for parse, model in (
        (parse_tokenize_request, TokenizeRequest),
        (parse_detokenize_request, DetokenizeRequest),
    ):
        try:
            parse(sent(value))
        except InvalidRequestError as error:
            check_refusal(error, value, list(model.model_fields))
