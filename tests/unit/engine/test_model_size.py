from typing import Any

import pytest

from engine.model_size import ModelSize, model_size
from engine.models.registry import read_model_config

LLAMA_3_70B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
LLAMA_3_8B = LLAMA_3_70B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA_2_70B_AS_MHA = LLAMA_3_70B | {"vocab_size": 32000, "num_key_value_heads": 64}


def size_of(config: dict[str, Any]) -> ModelSize:
    return model_size(read_model_config(config), dtype_bytes=2)


@pytest.mark.parametrize(
    ("config", "kv_token_bytes"),
    [(LLAMA_3_70B, 327_680), (LLAMA_3_8B, 131_072), (LLAMA_2_70B_AS_MHA, 2_621_440)],
    ids=["llama-3-70b", "llama-3-8b", "llama-2-70b as MHA"],
)
def test_kv_bytes_per_token(config: dict[str, Any], kv_token_bytes: int) -> None:
    assert size_of(config).kv_token_bytes == kv_token_bytes


def test_32_long_requests_of_a_70b_model_without_shared_heads_take_172_gigabytes() -> None:
    total_bytes = 32 * size_of(LLAMA_2_70B_AS_MHA).request_kv_bytes(2048, 16)
    assert round(total_bytes / 1e9, 1) == 171.8


def test_parameters_count_tied_embeddings_once() -> None:
    untied, tied = size_of(LLAMA_3_8B), size_of(LLAMA_3_8B | {"tie_word_embeddings": True})
    assert untied.num_parameters == 8_030_261_248
    assert untied.num_parameters - tied.num_parameters == 128256 * 4096
    assert untied.weight_bytes == 2 * untied.num_parameters


def test_requests_share_what_the_weights_leave_in_whole_blocks() -> None:
    size = size_of(LLAMA_3_8B)
    block_bytes = 16 * size.kv_token_bytes
    assert size.num_requests(size.weight_bytes + 10 * block_bytes, 33, 16) == 3
    assert size.num_requests(size.weight_bytes + 9 * block_bytes - 1, 33, 16) == 2
    assert size.num_requests(size.weight_bytes - 1, 33, 16) == 0


def test_windows_let_more_long_requests_fit() -> None:
    windowed = LLAMA_3_8B | {"model_type": "mistral", "sliding_window": 1024}
    full, short = size_of(LLAMA_3_8B), size_of(windowed)
    assert short.kv_token_bytes == full.kv_token_bytes
    memory_bytes = full.weight_bytes + 8192 * full.kv_token_bytes
    assert full.num_requests(memory_bytes, 8192, 16) == 1
    assert short.num_requests(memory_bytes, 8192, 16) == 7
