from typing import Any

import pytest

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.generation_config import (
    read_bos_token_id,
    read_eos_token_ids,
    read_sampling_defaults,
)
from engine.messages import SamplingDefaults


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 2}, {}, (2,)),
        ({"eos_token_id": [2, 0]}, {"eos_token_id": 0}, (2, 0)),
        ({"eos_token_id": None}, {"eos_token_id": 5}, (5,)),
        ({}, {"eos_token_id": [5, 5]}, (5,)),
        ({"eos_token_id": 1}, {"text_config": {"eos_token_id": [1, 106]}}, (1, 106)),
        ({}, {"text_config": "nonsense"}, ()),
        ({}, {}, ()),
    ],
)
def test_every_file_may_name_end_tokens(
    generation: dict[str, Any], config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert read_eos_token_ids(generation, config, where="here") == expected


@pytest.mark.parametrize("value", ["2", -1, 2.0, True, 2**31, [2, None], [[2]], {}, ["</s>"]])
def test_what_is_no_token_id_is_refused(value: object) -> None:
    with pytest.raises(CorruptCheckpoint, match="here: eos_token_id"):
        read_eos_token_ids({"eos_token_id": value}, {}, where="here")


def test_the_first_token_may_be_named_by_the_text_part() -> None:
    assert read_bos_token_id({"text_config": {"bos_token_id": 2}}, where="here") == 2
    assert read_bos_token_id({"bos_token_id": None}, where="here") is None


def test_only_what_is_recommended_is_a_default() -> None:
    said: dict[str, Any] = {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0,
        "repetition_penalty": 1.05,
    }
    assert read_sampling_defaults(said, where="here") == SamplingDefaults(**said)
    assert read_sampling_defaults({}, where="here") == SamplingDefaults()
    assert read_sampling_defaults({"top_p": None, "top_k": -1}, where="here") == SamplingDefaults(
        top_k=0
    )


def test_a_greedy_model_keeps_only_its_penalty() -> None:
    said = {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}
    assert read_sampling_defaults(said, where="here") == SamplingDefaults(repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("do_sample", "false"), ("temperature", "0.6"), ("temperature", -0.1),
        ("temperature", True), ("temperature", 10**400), ("top_p", 0), ("top_p", 1.1),
        ("top_k", 1.5), ("top_k", -2), ("top_k", 2**40), ("min_p", -0.1), ("min_p", [0.1]),
        ("repetition_penalty", 0),
    ],
)  # fmt: skip
def test_a_wrong_default_is_named(key: str, value: object) -> None:
    with pytest.raises(CorruptCheckpoint, match=rf"here/generation_config\.json: {key} "):
        read_sampling_defaults({key: value}, where="here")
