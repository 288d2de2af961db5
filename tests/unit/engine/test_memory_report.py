"""What a replica's memory is for, and what of it this process takes."""

from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.memory_report import (
    MemoryReport,
    check_device_memory,
    check_memory,
    report_memory,
)
from engine.models.registry import read_model_config

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
NUM_BYTES = 2 * 8_030_261_248
GIB = 1024**3


def report(
    hf_config: dict[str, Any] = LLAMA_3_8B,
    *,
    is_compiled: bool = False,
    is_packed_mapped: bool = True,
    is_packed: bool = False,
    **config: Any,
) -> MemoryReport:
    model = read_model_config(hf_config)
    geometry = model.kv_geometry(block_size_tokens=16, bytes_per_element=2)
    return report_memory(
        EngineConfig(**config),
        hf_config,
        model,
        geometry,
        num_blocks=1000,
        max_request_tokens=8192,
        is_compiled=is_compiled,
        is_packed_mapped=is_packed_mapped,
        is_packed=is_packed,
    )


def test_the_line_names_weights_workspace_and_pool() -> None:
    text = str(report())
    assert text.startswith("weights 16,060.5 MB | workspace ")
    assert text.endswith(" MB | KV pool 2,097.2 MB (1,000 blocks of 16 tokens)")


@pytest.mark.parametrize(
    ("change", "config", "private_bytes"),
    [
        ({}, {"weight_layout": "mapped"}, 0),
        ({}, {"weight_layout": "packed"}, NUM_BYTES),
        ({}, {}, NUM_BYTES),
        ({"dtype": "float16"}, {"weight_layout": "mapped"}, NUM_BYTES),
        ({"dtype": None, "torch_dtype": "bfloat16"}, {"weight_layout": "mapped"}, 0),
        ({"dtype": "float32", "tie_word_embeddings": True}, {}, NUM_BYTES),
        # The head is packed, and stays converted for the rows that are read one by one.
        ({"dtype": "float32"}, {}, NUM_BYTES + 2 * 128256 * 4096),
        ({}, {"device": "cuda", "weight_layout": "mapped"}, 0),
    ],
    ids=str,
)
def test_weights_that_stay_in_their_file_are_not_private(
    change: dict[str, Any], config: dict[str, Any], private_bytes: int
) -> None:
    assert report(LLAMA_3_8B | change, **config).private_weight_bytes == private_bytes


@pytest.mark.parametrize(
    ("change", "num_tables"),
    [
        ({}, 0),
        ({"dtype": "float32"}, 2),
        ({"dtype": "float32", "tie_word_embeddings": True}, 1),
    ],
)
def test_packed_weights_are_mapped_and_converted_tables_private(
    change: dict[str, Any], num_tables: int
) -> None:
    memory = report(LLAMA_3_8B | change, is_compiled=True)
    assert memory.private_weight_bytes == num_tables * 2 * 128256 * 4096
    cut = report(LLAMA_3_8B | change, is_compiled=True, tensor_parallel_size=2)
    assert cut.private_weight_bytes == max(1, 2 - ("tie_word_embeddings" in change)) * 128256 * 4096


@pytest.mark.parametrize(
    ("change", "quantization", "least_bytes", "most_bytes"),
    [
        # Of 16.06 GB the embedding, 1.05 GB, stays in the checkpoint, unless it is the head.
        ({}, "none", 15_009_000_000, 15_010_000_000),
        ({"tie_word_embeddings": True}, "none", 15_009_000_000, 15_010_000_000),
        ({}, "int8", 7_505_000_000, 7_520_000_000),
    ],
    ids=str,
)
def test_packed_weights_without_a_file_are_private(
    change: dict[str, Any], quantization: str, least_bytes: int, most_bytes: int
) -> None:
    memory = report(
        LLAMA_3_8B | change, is_compiled=True, is_packed_mapped=False, quantization=quantization
    )
    assert least_bytes <= memory.private_weight_bytes <= most_bytes
    plain = report(LLAMA_3_8B | change, is_packed_mapped=False, weight_layout="mapped")
    assert plain.private_weight_bytes == 0  # nothing is packed


@pytest.mark.parametrize(
    ("stored", "quantization", "paths", "num_bytes"),
    [
        ("float32", "int4", {}, NUM_BYTES),
        ("float16", "int4", {"is_compiled": True}, NUM_BYTES),
        ("float32", "int4", {"is_compiled": True, "is_packed": True}, 0),
        ("float32", "int4", {"is_packed": True}, NUM_BYTES),  # torch packs at each start
        ("bfloat16", "int4", {}, 0),
        ("float32", "int8", {}, 0),
    ],
    ids=str,
)
def test_each_rank_converts_the_whole_model_to_calibrate_it(
    stored: str, quantization: str, paths: dict[str, Any], num_bytes: int
) -> None:
    hf_config = LLAMA_3_8B | {"dtype": stored}
    memory = report(hf_config, quantization=quantization, tensor_parallel_size=2, **paths)
    assert memory.calibration_bytes == num_bytes


def test_calibration_that_does_not_fit_is_refused() -> None:
    config = EngineConfig(quantization="int4", kv_cache_bytes=1)
    # As of a model that is smaller once it is packed and mapped.
    memory = replace(report(), private_weight_bytes=0, calibration_bytes=8 * GIB, num_ranks=2)
    check_memory(config, memory, available_bytes=16 * GIB)
    with pytest.raises(EngineConfigError, match=f"'int4' takes {16 * GIB} bytes for a start"):
        check_memory(config, memory, available_bytes=16 * GIB - 1)


def test_what_does_not_fit_beside_weights_and_workspace_is_refused() -> None:
    memory = report(weight_layout="packed")
    beside_bytes = memory.private_weight_bytes + memory.workspace_bytes
    config = EngineConfig(kv_cache_bytes=4 * GIB)
    check_memory(config, memory, available_bytes=beside_bytes + 4 * GIB)
    with pytest.raises(EngineConfigError, match=f"set kv_cache_bytes to at most {2 * GIB}"):
        check_memory(config, memory, available_bytes=beside_bytes + 2 * GIB + 5)
    with pytest.raises(EngineConfigError, match="leave 0: free memory"):
        check_memory(config, memory, available_bytes=GIB)


def test_the_workspace_grows_with_what_one_step_may_hold() -> None:
    base = report().workspace_bytes
    assert report(max_num_batched_tokens=4096).workspace_bytes > base
    assert report(max_num_seqs=512).workspace_bytes > base
    assert report(attention="reference").workspace_bytes > base


def test_a_rank_must_fit_into_what_its_device_has_free() -> None:
    config = EngineConfig(device="cuda", kv_cache_bytes=4 * GIB)
    memory = report(device="cuda", weight_layout="mapped", kv_cache_bytes=4 * GIB)
    check_device_memory(config, memory, free_bytes=memory.device_bytes)
    with pytest.raises(EngineConfigError, match="set kv_cache_bytes to at most"):
        check_device_memory(config, memory, free_bytes=memory.device_bytes - 1)
    with pytest.raises(EngineConfigError, match="tensor_parallel_size or a larger device"):
        check_device_memory(config, memory, free_bytes=GIB)
