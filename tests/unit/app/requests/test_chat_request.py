"""The body of a chat completion: messages, tools and what else the template is given."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.errors import InvalidRequestError
from app.requests.chat_request import ChatRequest, parse_chat_request

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
GOOD: dict[str, Any] = {"model": "m", "messages": [USER]}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat_request(GOOD | fields, max_fanout=16)


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


def nested(depth: int) -> Any:
    return "x" if depth == 0 else {"a": [nested(depth - 1)]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_completion_tokens": True}, "max_completion_tokens"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": "yes"}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
    ({"modalities": ["text", "audio"]}, "modalities[1]"),
    ({"modalities": "text"}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"documents": [{"text": "x"}]}, "documents"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"tools": "x"}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [None]}, "tools[0]"),
    ({"tools": [TOOL, {}]}, "tools[1].type"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [TOOL] * 129}, "tools"),
    ({"tools": [TOOL | {"x": nested(20)}]}, "tools"),
    ({"tools": [TOOL | {"x": [0] * 50_000}]}, "tools"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
    ),
    ({"add_generation_prompt": 1}, "add_generation_prompt"),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
    ),
    (
        {"continue_final_message": True, "messages": [USER | {"content": ""}]},
        "continue_final_message",
    ),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"tools": None}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"__class__": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": {"b": 1}}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": "<|im_end|>"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": "[INST]"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": "x" * 65}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {f"a{index}": 1 for index in range(17)}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda value: json.dumps(value)[:60])
def test_a_bad_value_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert param in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "field", ["modalities", "stop", "stop_token_ids", "tools", "messages", "tool_calls", "content"]
)
def test_a_list_of_wrong_items_is_refused_at_the_first(field: str) -> None:
    """Or an error would be made of each: gigabytes from the few megabytes of a body."""
    items = [5] * 10_000
    fields: dict[str, Any] = {field: items}
    if field in ("tool_calls", "content"):
        fields = {"messages": [USER | fields]}
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate(GOOD | fields)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(
    ("fields", "num_max_tokens"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 0}, 0),
        ({"max_completion_tokens": 0, "max_tokens": 5}, 0),
        ({"max_completion_tokens": 3, "max_tokens": 5}, 3),
    ],
)
def test_the_newer_name_of_max_tokens_comes_first(
    fields: dict[str, Any], num_max_tokens: int | None
) -> None:
    assert parse(**fields).num_max_tokens == num_max_tokens


@pytest.mark.parametrize(
    ("fields", "num_top_logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities_come_with_as_many_alternatives_as_asked(
    fields: dict[str, Any], num_top_logprobs: int | None
) -> None:
    assert parse(**fields).options().num_top_logprobs == num_top_logprobs


@pytest.mark.parametrize(
    ("fields", "tools"),
    [
        ({"tools": [TOOL]}, [TOOL]),
        ({"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False}, [TOOL]),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": []}, None),
        ({"tool_choice": "auto"}, None),
        ({}, None),
    ],
)
def test_the_template_gets_the_tools_as_they_came(fields: dict[str, Any], tools: Any) -> None:
    assert parse(**fields).template_tools() == tools


def test_the_prompt_ends_at_the_answer_unless_the_last_message_is_continued() -> None:
    assert parse().adds_generation_prompt
    assert not parse(add_generation_prompt=False).adds_generation_prompt
    continued = parse(continue_final_message=True)
    assert continued.continues_final_message
    assert not continued.adds_generation_prompt


def test_plain_values_reach_the_template() -> None:
    kwargs = {"enable_thinking": False, "date_string": "26 Jul 2026", "budget": 5, "x": None}
    assert parse(chat_template_kwargs=kwargs).template_kwargs() == kwargs
    assert parse().template_kwargs() == {}


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ('{"city": "Paris", "days": [1, 2]}', {"city": "Paris", "days": [1, 2]}),
        ("", {}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ("{not JSON", "{not JSON"),
        ("[1]", "[1]"),
        ("5", "5"),
        (None, None),
    ],
)
def test_arguments_of_a_call_are_read_as_the_template_writes_them(sent: Any, read: Any) -> None:
    request = parse(messages=[USER, call(sent)])
    (tool_call,) = request.messages[1].for_template()["tool_calls"]
    assert tool_call == {"type": "function", "function": {"name": "f", "arguments": read}}


@pytest.mark.parametrize("arguments", [nested(20), {"a": [0] * 50_000}], ids=["nested", "many"])
def test_the_limits_of_tool_calls_hold_for_arguments_in_a_text(arguments: Any) -> None:
    with pytest.raises(InvalidRequestError, match="at most 50000 values") as caught:
        parse(messages=[USER, call(json.dumps(arguments))])
    assert caught.value.param == "messages"
