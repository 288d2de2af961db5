"""A model cut into ranks computes what the whole one does, for every family and layout of heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.collectives import Collectives
from engine.config import RankSpec
from engine.layers.linear import WeightLayout
from engine.loader import MetaWeights, WeightFiles
from engine.models.loading import load_model
from engine.models.registry import read_model_config
from engine.models.shard import shard_model, shard_parameters
from tests.unit.engine.models.test_families import WINDOW, random_tokens
from tests.unit.engine.paged_model import CPU, Chunk, PagedModel, save_tiny
from tests.unit.engine.thread_ranks import ThreadRanks, run_ranks
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model

ALL_BIASES = {"attention_bias": True, "mlp_bias": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"attention_bias": True},
    "gemma3_text": {
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "final_logit_softcapping": 5.0,
    },
}
HEADS = [(2, 4, 2), (3, 6, 3), (4, 8, 2), (8, 8, 1)]
"""Ranks, heads, KV heads; where ranks outnumber the last, some hold the same. 97 tokens are shared
evenly by none of them."""
CHUNKS = (
    [Chunk(0, 0, 5), Chunk(1, 0, 19)],
    [Chunk(1, 19, 1), Chunk(0, 5, 18)],
    [Chunk(1, 20, 1), Chunk(0, 23, 1)],
)


def make_reference(family: str, num_heads: int, num_kv_heads: int, **changes: Any) -> Any:
    heads = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}
    return make_tiny_model(
        family, **(FAMILIES[family] | heads | {"intermediate_size": 48} | changes)
    )


def run_chunks(
    reference: Any,
    path: Path,
    collectives: Collectives | None,
    layout: WeightLayout = "mapped",
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Tensor], list[Tensor]]:
    """Logits of every step, and exact ones of a few tokens if the dtype is coarse; empty on ranks
    other than 0."""
    model = load_model(
        read_model_config(reference.config.to_dict()),
        WeightFiles([path]),
        dtype=dtype,
        device=CPU,
        layout=layout,
        collectives=collectives,
    )
    paged = PagedModel(model, random_tokens(2), attention="cpu", dtype=dtype)
    logits, exact = [], []
    with torch.inference_mode():
        for chunks in CHUNKS:
            hidden = paged.forward(chunks)
            if collectives is not None and collectives.rank.rank > 0:
                model.head.follow_rows(hidden)
                continue
            logits.append(model.head.logits(hidden))
            if dtype is not torch.float32:
                for first, count in ((0, 5), (90, 3)):
                    ids = torch.arange(first, first + count).repeat(len(hidden), 1)
                    exact.append(model.head.exact_logits(hidden, ids))
            model.head.finish_rows()
    return logits, exact


@pytest.mark.parametrize(("size", "num_heads", "num_kv_heads"), HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_one_rank(
    tmp_path: Path, family: str, size: int, num_heads: int, num_kv_heads: int
) -> None:
    reference = make_reference(family, num_heads, num_kv_heads)
    path = save_tiny(reference, tmp_path)
    expected, _ = run_chunks(reference, path, None)
    (logits, _), *others = run_ranks(size, lambda rank: run_chunks(reference, path, rank))
    for actual, whole in zip(logits, expected, strict=True):
        assert actual.shape[-1] == VOCAB_SIZE
        scale = whole.abs().max()
        torch.testing.assert_close(actual / scale, whole / scale, rtol=0, atol=1e-5)
    assert others == [([], [])] * (size - 1)


@pytest.mark.parametrize("layout", ["mapped", "packed"])
def test_every_layout_of_weights_is_cut_and_biases_are_added_once(
    tmp_path: Path, layout: WeightLayout
) -> None:
    reference = make_reference("llama", 4, 2, **ALL_BIASES)
    path = save_tiny(reference, tmp_path)
    expected, _ = run_chunks(reference, path, None, layout)
    (logits, _), *_ = run_ranks(2, lambda rank: run_chunks(reference, path, rank, layout))
    torch.testing.assert_close(torch.cat(logits), torch.cat(expected), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_exact_logits_are_summed_where_the_dtype_is_coarse(tmp_path: Path, family: str) -> None:
    reference = make_reference(family, 6, 3, initializer_range=0.1)
    path = save_tiny(reference, tmp_path)
    bfloat16 = torch.bfloat16
    _, expected = run_chunks(reference, path, None, dtype=bfloat16)
    (logits, exact), *_ = run_ranks(
        3, lambda rank: run_chunks(reference, path, rank, dtype=bfloat16)
    )
    assert logits[0].dtype is bfloat16
    for actual, whole in zip(exact, expected, strict=True):
        assert actual.dtype is torch.float32
        distance = (actual - whole).norm() / whole.norm()
        assert distance < 0.02  # what rounding in other places makes of the same hidden states
    step = slice(90, 93)
    rounded = exact[1].to(bfloat16).float()
    torch.testing.assert_close(logits[0][:, step].float(), rounded, rtol=0.02, atol=0.02)


def test_each_block_of_a_layer_is_summed_once(tmp_path: Path) -> None:
    reference = make_reference("llama", 4, 2)
    path = save_tiny(reference, tmp_path)

    def count(collectives: Collectives) -> int:
        run_chunks(reference, path, collectives)
        assert isinstance(collectives, ThreadRanks)
        return collectives.num_calls

    per_step = 1 + 2 * 2 + 1  # the embedding, attention and MLP of two layers, the logits
    assert run_ranks(2, count) == [len(CHUNKS) * per_step] * 2


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


class OnMeta:
    """Collectives of a rank that computes nothing."""

    def __init__(self, rank: RankSpec) -> None:
        self.rank = rank

    def all_reduce_(self, tensor: Tensor) -> None:
        assert tensor.is_meta

    def broadcast_(self, tensor: Tensor) -> None:
        assert tensor.is_meta

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor | None:
        return part.new_empty(len(part), sum(widths))

    def close(self) -> None: ...


@pytest.mark.parametrize("rank", [0, 7])
@pytest.mark.parametrize(
    "config",
    [
        LLAMA_3_70B,
        LLAMA_3_70B | {"attention_bias": True, "mlp_bias": True},
        LLAMA_3_70B | {"model_type": "qwen2", "tie_word_embeddings": True},
        LLAMA_3_70B | {"model_type": "qwen3", "num_key_value_heads": 2, "vocab_size": 128257},
    ],
    ids=lambda config: f"{config['model_type']}-{len(config)}",
)
def test_a_shard_of_any_size_is_built_and_run_without_memory(
    config: dict[str, Any], rank: int
) -> None:
    num_layers = 3  # all alike
    whole = read_model_config(config | {"num_hidden_layers": num_layers})
    shard = shard_model(whole, RankSpec(rank, 8))
    weights = MetaWeights(torch.bfloat16)
    model = load_model(
        whole,
        weights,
        dtype=torch.bfloat16,
        device=torch.device("meta"),
        layout="mapped",
        collectives=OnMeta(shard.rank),
    )
    assert weights.num_elements == shard_parameters(whole, shard)
    assert weights.num_bytes == 2 * shard_parameters(whole, shard)

    def attend(query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
        assert query.shape == (3, 8, 128)
        assert new_kv.shape == (3, 2, 1, 128)
        return query.flatten(1)

    with torch.inference_mode():
        token_ids = torch.zeros(3, dtype=torch.int64, device="meta")
        kv_layers = [torch.empty(0)] * num_layers
        hidden = model.forward(token_ids, token_ids, kv_layers, [attend] * num_layers)
        assert hidden.shape == (3, 8192)
        assert model.head.logits(hidden).shape == (3, config["vocab_size"])


def test_eight_shards_of_a_70b_model_are_little_more_than_the_model() -> None:
    config = read_model_config(LLAMA_3_70B)
    shards = [shard_model(config, RankSpec(rank, 8)) for rank in range(8)]
    together = sum(shard_parameters(config, shard) for shard in shards)
    assert config.num_parameters() < together < 1.0002 * config.num_parameters()
