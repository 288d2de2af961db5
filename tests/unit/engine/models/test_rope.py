"""Every scaling of the rotary embedding against transformers', and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from engine.errors import CheckpointError
from engine.layers.rotary import RotaryEmbedding
from engine.models.config_reader import MAX_SIZE
from engine.models.registry import read_model_config
from tests.unit.engine.paged_model import CPU, Chunk, PagedModel, load_tiny
from tests.unit.engine.tiny_models import MAX_LEN, VOCAB_SIZE, make_tiny_model

LENGTH = 40
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 5000.0},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.0},
    YARN,
    YARN | {"attention_factor": 0.8, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    YARN | {"mscale": 0.7, "mscale_all_dim": 0.3},
    LLAMA3,
]
PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LEN,
}


def random_tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCAB_SIZE, (1, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_logits_equal_transformers_with_every_scaling(
    tmp_path: Path, scaling: dict[str, Any]
) -> None:
    reference = make_tiny_model("llama", head_dim=16, rope_parameters={"rope_theta": 1e4} | scaling)
    token_ids = random_tokens()
    paged = PagedModel(load_tiny(reference, tmp_path), token_ids, attention="cpu")
    rows = torch.cat([*paged.step([Chunk(0, 0, 33)]), *paged.step([Chunk(0, 33, LENGTH - 33)])])
    with torch.inference_mode():
        expected = reference(token_ids).logits[0]
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-4)


def test_gemma_scales_its_full_layers_alone(tmp_path: Path) -> None:
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 9e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 8e3},
    }
    reference = make_tiny_model(
        "gemma3_text", rope_parameters=ropes, sliding_window=7, sliding_window_pattern=2
    )
    token_ids = random_tokens()
    model = load_tiny(reference, tmp_path)
    (rows,) = PagedModel(model, token_ids, attention="cpu").step([Chunk(0, 0, LENGTH)])
    with torch.inference_mode():
        expected = reference(token_ids).logits[0]
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-4)
    old_spelling = reference.config.to_dict() | {
        "rope_parameters": None,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_theta": 9e5,
        "rope_local_base_freq": 8e3,
    }
    assert read_model_config(old_spelling) == model.config


def test_dynamic_scaling_equals_transformers_generation_beyond_the_original_length(
    tmp_path: Path,
) -> None:
    reference = make_tiny_model(
        "llama",
        head_dim=16,
        max_position_embeddings=24,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    )
    token_ids = random_tokens()
    model = load_tiny(reference, tmp_path)
    assert model.config.max_context_len == 48
    # transformers, as it generates: a prompt within the original length, then token by token.
    with torch.inference_mode():
        cache = DynamicCache(config=reference.config)
        spans = [(0, 20), *((position, position + 1) for position in range(20, LENGTH))]
        expected = [
            reference(token_ids[:, begin:end], cache=cache, use_cache=True).logits[0]
            for begin, end in spans
        ]
    # Ours, in chunks: a token's turn depends on its position alone.
    paged = PagedModel(model, token_ids, attention="cpu")
    rows = torch.cat([*paged.step([Chunk(0, 0, 30)]), *paged.step([Chunk(0, 30, LENGTH - 30)])])
    torch.testing.assert_close(rows, torch.cat(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("scaling", SCALINGS[1:], ids=str)
def test_both_spellings_mean_the_same(scaling: dict[str, Any]) -> None:
    new = read_model_config(PLAIN | {"rope_parameters": scaling | {"rope_theta": 7e4}})
    old_scaling = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    old = read_model_config(PLAIN | {"rope_scaling": old_scaling, "rope_theta": 7e4})
    assert old == new
    assert new.layers[0].rope.theta == 7e4


@pytest.mark.parametrize(
    ("scaling", "max_context_len"),
    [
        (None, MAX_LEN),
        ({"rope_type": "linear", "factor": 3.0}, 3 * MAX_LEN),
        ({"rope_type": "dynamic", "factor": 2.0}, 2 * MAX_LEN),
        (YARN | {"factor": 8.0}, 8 * 64),
        (YARN | {"factor": 2.0}, MAX_LEN),
        (LLAMA3, MAX_LEN),
        ({"rope_type": "linear", "factor": 1e15}, MAX_SIZE),
    ],
    ids=str,
)
def test_the_longest_context_follows_the_scaling(
    scaling: dict[str, Any] | None, max_context_len: int
) -> None:
    assert read_model_config(PLAIN | {"rope_scaling": scaling}).max_context_len == max_context_len


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "rope_scaling.rope_type 'longrope' is not supp"),
        ({"type": "su"}, "rope_scaling.type 'su' is not supported"),
        ({"rope_type": ["linear"]}, "rope_scaling.rope_type list is not supported"),
        ({"rope_type": "linear"}, "rope_scaling.factor is missing"),
        ({"rope_type": "linear", "factor": 0}, "rope_scaling.factor must be a number above 0"),
        ({"rope_type": "linear", "factor": float("nan")}, "rope_scaling.factor must be a number"),
        ({"rope_type": "yarn", "factor": "4"}, "rope_scaling.factor must be a number"),
        ({"rope_theta": 1.0}, "rope_scaling.rope_theta must be a number above 1"),
        ({"partial_rotary_factor": 0.5}, "rope_scaling.partial_rotary_factor is not supported"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "rope_scaling.high_freq_factor must be above low_"),
        (YARN | {"original_max_position_embeddings": -1}, "original_max_position_embeddings must"),
        ({"full_attention": {"rope_type": "linear"}}, "rope_scaling.full_attention is not supp"),
        ([1], "rope_scaling must be an object, not list"),
    ],
    ids=str,
)
def test_what_is_not_implemented_or_makes_no_sense_is_refused_by_name(
    scaling: Any, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_model_config(PLAIN | {"rope_scaling": scaling})


def test_far_positions_turn_without_a_table() -> None:
    rope = read_model_config(PLAIN).layers[0].rope
    rotary = RotaryEmbedding(rope, head_dim=4, dtype=torch.float32, device=CPU)
    cos, sin = rotary.at(torch.tensor([0, 10_000_000]))
    assert cos.shape == sin.shape == (2, 1, 4)
    torch.testing.assert_close(cos[1, 0, 0], torch.tensor(1e7).cos())
    torch.testing.assert_close(sin[1, 0], torch.tensor([-1e7, -1e5, 1e7, 1e5]).sin())
