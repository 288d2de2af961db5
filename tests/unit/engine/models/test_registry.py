"""What is read from config.json, and that nobody's config.json gets further than an error."""

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from engine.errors import CheckpointError
from engine.kv_geometry import KvGroup
from engine.models.registry import read_model_config

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
QWEN = PLAIN | {"model_type": "qwen2"}
GEMMA = PLAIN | {"model_type": "gemma3_text", "sliding_window": 32}


def windows(config: dict[str, Any]) -> list[int | None]:
    return [layer.window for layer in read_model_config(config).layers]


def test_mistral_has_one_window_for_all_layers_or_none() -> None:
    mistral = PLAIN | {"model_type": "mistral"}
    assert windows(mistral | {"sliding_window": 32}) == [32] * 6
    assert windows(mistral | {"sliding_window": None}) == [None] * 6
    assert windows(mistral) == [None] * 6  # the default of 4096 is longer than the context
    assert windows(mistral | {"max_position_embeddings": 8192}) == [4096] * 6


def test_qwen_has_windows_in_its_last_layers_if_at_all() -> None:
    sliding = QWEN | {"sliding_window": 32, "max_window_layers": 4}
    assert windows(sliding) == [None] * 6
    assert windows(sliding | {"use_sliding_window": True}) == [None] * 4 + [32] * 2
    assert windows(sliding | {"use_sliding_window": True, "max_window_layers": 0}) == [32] * 6
    types = ["sliding_attention", "full_attention"] * 3
    assert windows(sliding | {"use_sliding_window": True, "layer_types": types}) == [32, None] * 3
    with pytest.raises(CheckpointError, match="sliding_window is missing"):
        windows(sliding | {"layer_types": types})


@pytest.mark.parametrize("config", [PLAIN | {"model_type": "mistral"}, QWEN, GEMMA])
def test_a_window_of_the_token_alone_is_refused(config: dict[str, Any]) -> None:
    sliding = config | {"use_sliding_window": True, "max_window_layers": 0}
    assert 2 in windows(sliding | {"sliding_window": 2})
    with pytest.raises(CheckpointError, match="sliding_window must be at least 2"):
        read_model_config(sliding | {"sliding_window": 1})


def test_gemma_has_a_full_layer_after_every_few_with_windows() -> None:
    assert windows(GEMMA) == [32] * 5 + [None]
    assert windows(GEMMA | {"sliding_window_pattern": 2}) == [32, None] * 3
    types = ["full_attention"] + ["sliding_attention"] * 5
    assert windows(GEMMA | {"layer_types": types}) == [None] + [32] * 5
    geometry = read_model_config(GEMMA).kv_geometry(block_size_tokens=16, bytes_per_element=2)
    assert geometry.groups == (KvGroup((5,)), *(KvGroup((layer,), 32) for layer in range(5)))


def test_gemma_with_a_vision_tower_is_its_text_part_under_other_names() -> None:
    text = {key: value for key, value in GEMMA.items() if key != "model_type"}
    both = read_model_config({"model_type": "gemma3", "text_config": text})
    names = [name for name, _ in both.tensor_shapes()]
    assert names[0] == "model.language_model.embed_tokens.weight"
    assert "lm_head.weight" not in names
    assert both.num_parameters() == read_model_config(GEMMA).num_parameters()


@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gemma3"]
)
def test_the_defaults_of_transformers_are_understood(model_type: str) -> None:
    hf_config = AutoConfig.for_model(model_type)
    text = hf_config.get_text_config()
    config = read_model_config(hf_config.to_dict())
    assert config.architecture == model_type
    assert (config.vocab_size, config.num_layers) == (text.vocab_size, text.num_hidden_layers)
    assert config.has_tied_embeddings == text.tie_word_embeddings


def test_a_published_gemma_config_that_leaves_keys_out_is_read() -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = read_model_config({"model_type": "gemma3", "text_config": text})
    assert (config.vocab_size, config.num_heads, config.head_dim) == (262208, 8, 256)
    assert config.max_context_len == 131072  # the scaling is counted in already
    assert config.num_parameters() == 3_880_263_168


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, r"model_type 'mamba' is not supported, only gemma3, .*llama"),
        ({"model_type": ["llama"]}, "is not supported, only gemma3"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, only 'silu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4, which 6 heads can't share"),
        ({"head_dim": 7}, "head_dim is 7, but RoPE turns pairs"),
        ({"hidden_size": "48"}, "hidden_size must be an integer from 1 to .* not '48'"),
        ({"hidden_size": -48}, "hidden_size must be"),
        ({"hidden_size": 48.0}, "hidden_size must be"),
        ({"hidden_size": True}, "hidden_size must be .* not True"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": 10**30}, "vocab_size must be"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to 1024"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a number above 0"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be"),
        ({"rope_theta": math.inf}, "rope_theta must be"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
    ],
    ids=str,
)
def test_what_makes_no_sense_or_is_not_implemented_names_its_key(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_model_config(PLAIN | change)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ({"hidden_activation": "relu"}, "hidden_activation 'relu' is not supported"),
        ({"layer_types": ["full_attention"]}, "layer_types must be a list of 6 words"),
        ({"layer_types": ["chunked_attention"] * 6}, "layer_types 'chunked_attention' is not"),
    ],
    ids=str,
)
def test_what_a_gemma_may_not_ask_for_names_its_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_model_config(GEMMA | change)


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = [
    *PLAIN, "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "sliding_window", "sliding_window_pattern", "layer_types", "use_sliding_window",
    "max_window_layers", "query_pre_attn_scalar", "final_logit_softcapping", "text_config",
    "rope_local_base_freq", "tie_word_embeddings", "attention_bias", "mlp_bias",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    model_type=st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gemma3"]),
    changes=st.dictionaries(st.sampled_from(KEYS[1:]), anything, max_size=3),
)
def test_any_value_under_any_key_is_read_or_refused_in_no_time(
    model_type: str, changes: dict[str, Any]
) -> None:
    started_s = time.perf_counter()
    config = PLAIN | {"model_type": model_type, "text_config": PLAIN} | changes
    try:
        model = read_model_config(config)
    except CheckpointError:
        return
    assert model.num_parameters() > 0
    assert model.kv_geometry(block_size_tokens=16, bytes_per_element=2).block_bytes > 0
    assert time.perf_counter() - started_s < 1.0
