"""The bodies of the two tokenizing routes."""

import json
from typing import Any

import pytest

from app.errors import InvalidRequestError
from app.requests.tokenize_request import parse_detokenize_request, parse_tokenize_request

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "Hi", "messages": MESSAGES}, "prompt"),
        ({"prompt": ["Hi"]}, "prompt"),
        ({"prompt": "Hi", "model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": MESSAGES, "tools": [5]}, "tools[0]"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        ({"prompt": "Hi", "add_special_tokens": 1}, "add_special_tokens"),
        ({"prompt": "Hi", "return_token_strs": "yes"}, "return_token_strs"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_bad_body_to_tokenize_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_tokenize_request({"model": "m"} | fields)
    assert caught.value.param == param


def test_only_a_text_gets_the_tokenizers_special_tokens_by_default() -> None:
    assert parse_tokenize_request({"model": "m", "prompt": ""}).adds_special_tokens
    messages = {"model": "m", "messages": MESSAGES}
    assert not parse_tokenize_request(messages).adds_special_tokens
    assert parse_tokenize_request(messages | {"add_special_tokens": True}).adds_special_tokens


@pytest.mark.parametrize(
    ("tokens", "param"),
    [
        (None, "tokens"),
        ("x", "tokens"),
        ([1, "x"], "tokens[1]"),
        ([-1], "tokens[0]"),
        ([True], "tokens[0]"),
        ([2**31], "tokens[0]"),
        ([[1]], "tokens[0]"),
    ],
)
def test_bad_ids_to_detokenize_are_refused_by_name(tokens: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_detokenize_request({"model": "m", "tokens": tokens})
    assert caught.value.param == param


def test_no_ids_are_an_empty_text() -> None:
    assert parse_detokenize_request({"model": "m", "tokens": []}).tokens == []
