"""Our models against transformers' on random weights, for every family and layout of heads."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.layers.linear import WeightLayout, can_pack
from tests.unit.engine.paged_model import BLOCK_SIZE, Chunk, PagedModel, load_tiny
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model

LENGTH = 27
WINDOW = 6
UNTIED = {"tie_word_embeddings": False}
MHA = {"num_attention_heads": 4, "num_key_value_heads": 4}
MQA = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16}
QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", MHA | {"tie_word_embeddings": True}),
    ("llama", UNTIED | {"num_attention_heads": 6}),
    ("llama", MQA | {"attention_bias": True, "mlp_bias": True}),
    ("mistral", MHA | {"sliding_window": None, "head_dim": 10}),
    ("mistral", MQA | {"sliding_window": WINDOW}),
    ("mistral", {"sliding_window": 2}),
    ("qwen2", {"tie_word_embeddings": True, "head_dim": 12}),
    ("qwen2", MQA | QWEN_WINDOWS | {"num_hidden_layers": 3}),
    ("qwen3", MHA | {"attention_bias": True}),
    ("qwen3", QWEN_WINDOWS | {"layer_types": ["sliding_attention", "full_attention"]}),
    ("gemma3_text", MHA | {"sliding_window": WINDOW, "query_pre_attn_scalar": 24}),
    (
        "gemma3_text",
        MQA
        | {"num_hidden_layers": 5, "sliding_window": WINDOW, "sliding_window_pattern": 3}
        | {"final_logit_softcapping": 5.0},
    ),
]


def random_tokens(count: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCAB_SIZE, (count, length), generator=torch.Generator().manual_seed(1))


def expected_logits(reference: Any, token_ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = reference(token_ids).logits
    return logits


@pytest.mark.parametrize("attention", ["reference", "cpu"])
@pytest.mark.parametrize(("model_type", "overrides"), MODELS, ids=str)
def test_logits_equal_transformers_in_chunks_and_mixed_batches(
    tmp_path: Path, model_type: str, overrides: dict[str, Any], attention: str
) -> None:
    reference = make_tiny_model(model_type, **overrides)
    token_ids = random_tokens(2)
    paged = PagedModel(load_tiny(reference, tmp_path), token_ids, attention=attention)
    logits = torch.full((2, LENGTH, VOCAB_SIZE), torch.nan)
    # Chunks, then a decode beside a chunk, then decodes.
    for chunks in (
        [Chunk(0, 0, 5), Chunk(1, 0, 19)],
        [Chunk(1, 19, 1), Chunk(0, 5, 18)],
        [Chunk(1, 20, 1), Chunk(0, 23, 1)],
        [Chunk(1, 21, 6), Chunk(0, 24, 3)],
    ):
        for (sequence, start, count), rows in zip(chunks, paged.step(chunks), strict=True):
            logits[sequence, start : start + count] = rows
    torch.testing.assert_close(logits, expected_logits(reference, token_ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("model_type", "overrides"), MODELS, ids=str)
def test_a_cached_prefix_serves_as_if_it_were_computed(
    tmp_path: Path, model_type: str, overrides: dict[str, Any]
) -> None:
    reference = make_tiny_model(model_type, **overrides)
    token_ids = random_tokens(2)
    token_ids[1, : 4 * BLOCK_SIZE] = token_ids[0, : 4 * BLOCK_SIZE]
    paged = PagedModel(load_tiny(reference, tmp_path), token_ids, attention="cpu")
    expected = expected_logits(reference, token_ids)
    paged.step([Chunk(0, 0, LENGTH)])
    paged.share_prefix(0, 1, 3)
    paged.copy_block(0, 1, 3)
    # The last cached token is computed again, into the copy of its block.
    start = 4 * BLOCK_SIZE - 1
    (rows,) = paged.step([Chunk(1, start, LENGTH - start)])
    torch.testing.assert_close(rows, expected[1, start:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma3_text"])
def test_packed_weights_compute_what_mapped_ones_do(tmp_path: Path, model_type: str) -> None:
    if not can_pack(torch.float32):
        pytest.skip("this build of torch packs no float32")
    reference = make_tiny_model(model_type, num_attention_heads=6)
    token_ids = random_tokens(1)
    layouts: tuple[WeightLayout, ...] = ("mapped", "packed")
    mapped, packed = (
        PagedModel(load_tiny(reference, tmp_path, layout), token_ids, attention="cpu").step(
            [Chunk(0, 0, LENGTH)]
        )[0]
        for layout in layouts
    )
    torch.testing.assert_close(packed, mapped, rtol=0, atol=1e-4)


def test_exact_logits_are_those_of_the_whole_vocabulary(tmp_path: Path) -> None:
    reference = make_tiny_model("gemma3_text", final_logit_softcapping=5.0)
    model = load_tiny(reference, tmp_path)
    hidden = torch.randn(3, 48)
    token_ids = torch.tensor([[5, 9], [0, 96], [7, 7]])
    with torch.inference_mode():
        expected = model.head.logits(hidden).gather(-1, token_ids)
        actual = model.head.exact_logits(hidden, token_ids)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
