"""Which tokens end an answer of a GGUF model, and how it is sampled by default."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.gguf_convert import convert_gguf
from tests.unit.engine.checkpoints.llama_cpp_writer import read_json

if TYPE_CHECKING:
    from tests.unit.engine.checkpoints.conftest import TinyModel


def generation(model: "TinyModel", tmp_path: Path, metadata: dict[str, object]) -> dict[str, Any]:
    model.metadata = metadata
    folder = tmp_path / "converted"
    folder.mkdir()
    convert_gguf(model.write(tmp_path / "model.gguf"), folder)
    return read_json(folder / "generation_config.json")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, 2),
        ({"tokenizer.ggml.eot_token_id": 2}, 2),
        ({"tokenizer.ggml.eot_token_id": 0}, [2, 0]),
        ({"tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 0}, [2, 1, 0]),
        ({"tokenizer.ggml.eos_token_id": None}, None),
        # Without an end of turn of its own, the one that the template writes counts, too.
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.chat_template": "x<|im_end|>"}, [0, 2]),
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.chat_template": "x"}, 0),
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.chat_template": "x<|eot_id|>"}, 0),
        (
            {
                "tokenizer.ggml.eos_token_id": 0,
                "tokenizer.ggml.eot_token_id": 1,
                "tokenizer.chat_template": "x<|im_end|>",
            },
            [0, 1],
        ),
    ],
)
def test_all_tokens_that_end_an_answer_are_listed(
    tiny_model: "TinyModel", tmp_path: Path, metadata: dict[str, object], expected: object
) -> None:
    assert generation(tiny_model, tmp_path, metadata)["eos_token_id"] == expected


def test_sampling_defaults_of_the_file_are_kept(tiny_model: "TinyModel", tmp_path: Path) -> None:
    found = generation(
        tiny_model,
        tmp_path,
        {
            "general.sampling.temp": 0.6,
            "general.sampling.top_k": 20,
            "general.sampling.top_p": 0.95,
            "general.sampling.min_p": 0.0,
            "general.sampling.penalty_repeat": 1.05,
        },
    )
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    assert found == ids | {
        "temperature": 0.6,
        "do_sample": True,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
    }


def test_a_temperature_of_zero_is_greedy(tiny_model: "TinyModel", tmp_path: Path) -> None:
    assert generation(tiny_model, tmp_path, {"general.sampling.temp": 0.0})["do_sample"] is False


@pytest.mark.parametrize("value", ["hot", -1.0, float("nan"), [0.5], True])
def test_a_default_that_makes_no_sense_is_corrupt(
    tiny_model: "TinyModel", tmp_path: Path, value: object
) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"general\.sampling\.temp"):
        generation(tiny_model, tmp_path, {"general.sampling.temp": value})
