"""Cutting models into ranks: every parameter is held, and the arithmetic of a shard is exact."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import RankSpec
from engine.errors import EngineConfigError
from engine.models.model_config import ModelConfig
from engine.models.registry import read_model_config
from engine.models.shard import ModelShard, possible_sizes, shard_model, shard_parameters

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


def shards_of(config: ModelConfig, size: int) -> list[ModelShard]:
    return [shard_model(config, RankSpec(rank, size)) for rank in range(size)]


def test_a_70b_model_at_8_ranks_holds_an_eighth_each_and_the_norms_whole() -> None:
    config = read_model_config(LLAMA_3_70B)
    norms = (2 * 80 + 1) * 8192
    for shard in shards_of(config, 8):
        assert shard_parameters(config, shard) == (config.num_parameters() - norms) // 8 + norms
        assert (len(shard.heads), len(shard.kv_heads)) == (8, 1)
        assert len(shard.inner) == 3584


@pytest.mark.parametrize(
    "change",
    [{}, {"model_type": "qwen2"}, {"attention_bias": True, "tie_word_embeddings": True}],
    ids=str,
)
def test_one_rank_holds_the_whole_model(change: dict[str, Any]) -> None:
    config = read_model_config(LLAMA_3_70B | change)
    (shard,) = shards_of(config, 1)
    assert shard.is_whole
    assert shard.local_config(config) == config
    assert shard_parameters(config, shard) == config.num_parameters()


def test_neighbours_share_a_kv_head_when_ranks_outnumber_them() -> None:
    config = read_model_config(LLAMA_3_70B | {"num_key_value_heads": 2})
    heads = [list(shard.kv_heads) for shard in shards_of(config, 8)]
    assert heads == [[0]] * 4 + [[1]] * 4
    for shard in shards_of(config, 8):
        group = config.num_heads // config.num_kv_heads
        assert {head // group for head in shard.heads} == set(shard.kv_heads)


def test_what_is_added_to_a_sum_is_held_once() -> None:
    config = read_model_config(LLAMA_3_70B | {"attention_bias": True, "mlp_bias": True})
    holders = [shard.holds("self_attn.o_proj.bias") for shard in shards_of(config, 4)]
    assert holders == [True, False, False, False]
    assert all(shard.holds("self_attn.q_proj.bias") for shard in shards_of(config, 4))
    assert all(shard.holds("mlp.down_proj.weight") for shard in shards_of(config, 4))


@given(vocab_size=st.integers(8, 300), size=st.sampled_from([1, 2, 4, 8]))
def test_vocabularies_are_cut_without_gap_into_parts_that_differ_by_one(
    vocab_size: int, size: int
) -> None:
    config = read_model_config(LLAMA_3_70B | {"vocab_size": vocab_size})
    parts = [shard.vocab for shard in shards_of(config, size)]
    assert [token for part in parts for token in part] == list(range(vocab_size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("size", "change", "message"),
    [
        (3, {}, "64 attention heads"),
        (6, {"num_attention_heads": 48}, "28672 MLP dimensions"),
        (32, {"num_attention_heads": 384, "num_key_value_heads": 6}, "6 heads of keys"),
        (64, {"vocab_size": 40}, "40 tokens of the vocabulary"),
    ],
    ids=str,
)
def test_what_cannot_be_cut_is_named_with_the_sizes_that_can(
    size: int, change: dict[str, Any], message: str
) -> None:
    config = read_model_config(LLAMA_3_70B | {"head_dim": 128} | change)
    with pytest.raises(EngineConfigError, match=rf"{message} .* set it to one of 1, 2"):
        shard_model(config, RankSpec(0, size))


def test_possible_sizes_are_those_that_can_be_cut() -> None:
    config = read_model_config(LLAMA_3_70B)
    assert possible_sizes(config) == [1, 2, 4, 8, 16, 32, 64]
    assert possible_sizes(config, maximum=8) == [1, 2, 4, 8]
