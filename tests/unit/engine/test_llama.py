"""Our Llama against transformers' on random weights, for every layout of heads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention import create_attention
from engine.attention.base import RaggedBatch
from engine.errors import CheckpointError
from engine.kv_pool import KvPool
from engine.layers.linear import WeightLayout, can_pack
from engine.loader import WeightFiles
from engine.models.llama import LlamaModel
from engine.models.llama_config import LlamaConfig
from tests.unit.engine.tiny_llama import VOCAB_SIZE, make_reference, write_checkpoint

CPU = torch.device("cpu")
BLOCK_SIZE = 4
LAYOUTS: list[dict[str, Any]] = [
    {"num_heads": 4, "num_kv_heads": 4},
    {"num_heads": 6, "num_kv_heads": 2},
    {"num_heads": 4, "num_kv_heads": 1, "head_dim": 16},
    {"num_heads": 3, "num_kv_heads": 3, "head_dim": 10, "is_tied": False},
    {"num_heads": 4, "num_kv_heads": 2, "has_bias": True, "is_tied": False},
]


def load(folder: Path, hf_config: dict[str, Any], layout: WeightLayout) -> LlamaModel:
    return LlamaModel.load(
        LlamaConfig.from_hf(hf_config),
        WeightFiles([folder / "model.safetensors"]),
        max_len=256,
        dtype=torch.float32,
        device=CPU,
        layout=layout,
    )


@pytest.mark.parametrize("layout", ["mapped", "packed"])
@pytest.mark.parametrize("attention", ["reference", "cpu"])
@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_logits_equal_transformers_in_chunks_and_mixed_batches(
    tmp_path: Path, sizes: dict[str, Any], attention: str, layout: WeightLayout
) -> None:
    if layout == "packed" and not can_pack(torch.float32):
        pytest.skip("this build of torch packs no float32")
    reference = make_reference(**sizes)
    folder = write_checkpoint(reference, tmp_path / "checkpoint")
    model = load(folder, reference.config.to_dict(), layout)
    geometry = model.config.kv_geometry(block_size_tokens=BLOCK_SIZE, bytes_per_element=4)
    pool = KvPool(geometry, 32, dtype=torch.float32, device=CPU)
    pool.poison()
    backend = create_attention(attention, CPU, geometry)
    prompts = torch.randint(VOCAB_SIZE, (2, 21), generator=torch.Generator().manual_seed(1))
    tables = np.random.default_rng(0).permutation(32)[:12].reshape(2, 6)

    logits = torch.full((2, 21, VOCAB_SIZE), torch.nan)
    # Per step and sequence (start, num_tokens): chunks, then a decode beside a chunk, then decodes.
    for step in ([(0, 5), (0, 19)], [(19, 1), (5, 15)], [(20, 1), (20, 1)]):
        members = [0, 1] if step[0][0] in (0, 20) else [1, 0]
        batch = RaggedBatch(
            starts=np.array([start for start, _ in step]),
            num_tokens=np.array([count for _, count in step]),
            block_tables=tables[members],
            block_size=BLOCK_SIZE,
        )
        spans = [slice(start, start + count) for start, count in step]
        token_ids = torch.cat([prompts[i, s] for i, s in zip(members, spans, strict=True)])
        with torch.inference_mode():
            positions = torch.from_numpy(batch.positions())
            hidden = model.forward(token_ids, positions, pool.layers, backend.prepare(batch))
            rows = model.logits(hidden).split([count for _, count in step])
        for index, span, row in zip(members, spans, rows, strict=True):
            logits[index, span] = row

    with torch.inference_mode():
        expected = reference(prompts).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen3"}, "model_type 'qwen3'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "RoPE scaling 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "RoPE scaling 'linear'"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"hidden_size": "32"}, "hidden_size must be a positive integer"),
        ({"vocab_size": None}, "vocab_size must be"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    hf_config = make_reference().config.to_dict() | change
    with pytest.raises(CheckpointError, match=message):
        LlamaConfig.from_hf(hf_config)


def test_rope_theta_is_read_from_old_and_new_keys() -> None:
    hf_config = make_reference().config.to_dict()
    assert LlamaConfig.from_hf(hf_config).rope_theta == 5000.0
    del hf_config["rope_parameters"]
    assert LlamaConfig.from_hf(hf_config | {"rope_theta": 7.0}).rope_theta == 7.0
    assert LlamaConfig.from_hf(hf_config).rope_theta == 10000.0
