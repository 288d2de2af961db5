"""What chat and text completions have in common: every field is understood or refused by name."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import InvalidRequestError
from app.requests.answer_options import AnswerOptions
from app.requests.chat_request import parse_chat_request
from app.requests.completion_request import parse_completion_request
from app.requests.sampling_fields import SamplingFields

Parse = Callable[[dict[str, Any]], SamplingFields]

NAN = float("nan")
INFINITY = float("inf")


def parse_chat(fields: dict[str, Any]) -> SamplingFields:
    good = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    return parse_chat_request(good | fields, max_fanout=16)


def parse_completion(fields: dict[str, Any]) -> SamplingFields:
    return parse_completion_request({"model": "m", "prompt": "Hi"} | fields, max_fanout=16)


both_routes = pytest.mark.parametrize("parse", [parse_chat, parse_completion])

NUMBERS: dict[str, tuple[list[float], list[float]]] = {
    "max_tokens": ([0, 1, 2**62], [-1, 1.5, 1e30]),
    "min_tokens": ([0, 5], [-1, 0.5]),
    "temperature": ([0, 0.5, 2], [-0.1, 2.1]),
    "top_p": ([0.001, 1], [0, 1.01, -1]),
    "top_k": ([-1, 0, 50], [-2, 1.5]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "repetition_penalty": ([0.1, 1, 10], [0, -1, 10.5]),
    "presence_penalty": ([-2, 0, 2], [-2.1, 2.1]),
    "frequency_penalty": ([-2, 0, 2], [-2.1, 2.1]),
    "seed": ([-(2**62), -1, 0, 2**64 - 1], [1.5]),
    "n": ([1, 16], [0, -1, 17, 128, 129, 10**9, 1.5]),
}
NO_NUMBERS: list[Any] = ["1", True, [1], {"a": 1}, NAN, INFINITY, -INFINITY]
BOOLEANS = ["stream", "ignore_eos", "include_stop_str_in_output", "return_token_ids"]
REFUSED: dict[str, Any] = {
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "guided_choice": ["a"],
    "guided_grammar": "x",
    "guided_json": {"type": "object"},
    "guided_regex": "x",
    "logits_processors": ["x"],
    "prompt_logprobs": 0,
    "return_tokens_as_token_ids": True,
    "structured_outputs": {"json": {}},
    "truncate_prompt_tokens": 5,
    "use_beam_search": True,
}
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": ["a", None]}, "stop[1]"),
    ({"stop": ["a"] * 1000}, "stop"),
    ({"stop": "a" * 1001}, "stop"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [2**31]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"01": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias"),
    ({"logit_bias": {"5": "1"}}, "logit_bias"),
    ({"logit_bias": {"5": True}}, "logit_bias"),
    ({"logit_bias": {"5": None}}, "logit_bias"),
    ({"logit_bias": {"5": NAN}}, "logit_bias"),
    ({"logit_bias": {str(token_id): 1 for token_id in range(1025)}}, "logit_bias"),
    ({"logit_bias": dict.fromkeys(map(str, range(100_000)), "x")}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": "yes"}},
        "stream_options.continuous_usage_stats",
    ),
    ({"response_format": {"type": "json_object"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": "text"}, "response_format"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"skip_special_tokens": "no"}, "skip_special_tokens"),
]
NO_BOOLEANS: list[Any] = [1, 0, "yes", [], {}]
WRONG: list[tuple[str, Any]] = [
    *((name, value) for name, (_, bad) in NUMBERS.items() for value in bad),
    *((name, value) for name in NUMBERS for value in NO_NUMBERS),
    *((name, value) for name in BOOLEANS for value in NO_BOOLEANS),
    *REFUSED.items(),
]
BAD = [*(({name: value}, name) for name, value in WRONG), *OTHERS]


@both_routes
@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda value: json.dumps(value)[:60])
def test_a_bad_value_is_refused_by_name(parse: Parse, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(fields)
    assert caught.value.param == param
    assert param in caught.value.message
    assert len(caught.value.message) < 300


@both_routes
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (good, _) in NUMBERS.items() for value in good],
)
def test_a_number_within_its_range_is_kept(parse: Parse, name: str, value: float) -> None:
    assert getattr(parse({name: value}), name) == value


@both_routes
@pytest.mark.parametrize("name", sorted({*NUMBERS, *BOOLEANS, *REFUSED, "stop", "logit_bias"}))
def test_null_is_the_same_as_absent(parse: Parse, name: str) -> None:
    assert parse({name: None}) == parse({})


@both_routes
@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "verbosity": "low"},
        {"priority": 5, "cache_salt": "x", "kv_transfer_params": {}},
        {"user": 5, "metadata": [], "prediction": {"type": "content"}, "unknown": NAN},
        dict.fromkeys(REFUSED, False),
        {"bad_words": [], "guided_json": {}, "structured_outputs": {}, "guided_regex": ""},
        {"response_format": {"type": "text"}, "skip_special_tokens": True},
    ],
)
def test_what_does_not_change_the_answer_is_ignored(parse: Parse, fields: dict[str, Any]) -> None:
    assert parse(fields).options() == parse({}).options() == AnswerOptions()


@both_routes
def test_the_answers_options_are_those_asked_for(parse: Parse) -> None:
    request = parse(
        {
            "n": 3,
            "stop": ["a", "b"],
            "include_stop_str_in_output": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
        }
    )
    assert request.options() == AnswerOptions(
        num_choices=3,
        num_samples=3,
        stops=("a", "b"),
        includes_stop=True,
        is_stream=True,
        includes_usage=True,
        has_continuous_usage=True,
        returns_token_ids=True,
    )


@both_routes
def test_one_stop_string_may_stand_alone(parse: Parse) -> None:
    assert parse({"stop": "END"}).options().stops == ("END",)
