"""The body of a text completion: prompts of every kind, and how many answers they may have."""

import json
from typing import Any

import pytest

from app.errors import InvalidRequestError
from app.requests.completion_request import CompletionRequest, parse_completion_request


def parse(max_fanout: int = 16, **fields: Any) -> CompletionRequest:
    return parse_completion_request({"model": "m", "prompt": "Hi"} | fields, max_fanout=max_fanout)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ["one"]),
        ("", [""]),
        (["one"], ["one"]),
        (["one", ""], ["one", ""]),
        ([5, 6], [[5, 6]]),
        ([[5, 6]], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
def test_a_prompt_is_one_or_several_texts_or_lists_of_ids(prompt: Any, prompts: Any) -> None:
    assert parse(prompt=prompt).prompts() == prompts


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [[5], []]}, "prompt[1]"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": [5, "a"]}, "prompt[1]"),
    ({"prompt": [[5], "a"]}, "prompt[1]"),
    ({"prompt": [[5, "a"]]}, "prompt[0][1]"),
    ({"prompt": [None]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [2**31]}, "prompt[0]"),
    ({"prompt": ["a"] * 17}, "prompt"),
    ({"prompt": ["a"] * 10_000}, "prompt"),
    ({"prompt": [[1]] * 10_000}, "prompt"),
    ({"prompt": ["a", "b"], "n": 9}, "n"),
    ({"prompt": ["a", "b"], "best_of": 9}, "best_of"),
    ({"best_of": 17}, "best_of"),
    ({"best_of": 0}, "best_of"),
    ({"best_of": True}, "best_of"),
    ({"n": 4, "best_of": 3}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": False}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"suffix": "the end"}, "suffix"),
    ({"prompt_embeds": "x"}, "prompt_embeds"),
    ({"add_special_tokens": "no"}, "add_special_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda value: json.dumps(value)[:60])
def test_a_bad_value_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields = {key: "x" for key in ("model", "prompt") if key != missing}
    with pytest.raises(InvalidRequestError) as caught:
        parse_completion_request(fields, max_fanout=16)
    assert caught.value.param == missing


def test_the_bound_of_answers_is_the_gateways() -> None:
    assert len(parse(max_fanout=64, prompt=["a"] * 32, n=2).prompts()) == 32
    with pytest.raises(InvalidRequestError, match="at most 63 answers"):
        parse(max_fanout=63, prompt=["a"] * 32, n=2)


def test_the_best_of_several_samples_is_shown() -> None:
    options = parse(n=2, best_of=5).options()
    assert (options.num_choices, options.num_samples) == (2, 5)
    assert parse(n=2, best_of=2, stream=True).options().num_samples == 2


def test_an_echo_has_the_log_probabilities_of_the_answer() -> None:
    request = parse(echo=True, logprobs=3, max_tokens=0)
    assert request.options().echoes_prompt
    assert request.options().num_top_logprobs == 3
    assert request.num_prompt_logprobs == 3
    assert parse(logprobs=3).num_prompt_logprobs is None
    assert parse(echo=True).num_prompt_logprobs is None


def test_a_text_gets_the_tokenizers_special_tokens_unless_refused() -> None:
    assert parse().adds_special_tokens
    assert not parse(add_special_tokens=False).adds_special_tokens
