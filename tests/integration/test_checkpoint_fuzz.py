"""Damaged and forged model files by the thousand: a clear error or a model, nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen2Config

from tests.unit.engine.checkpoints.conftest import make_tiny_model
from tests.unit.engine.checkpoints.llama_cpp_writer import TOKENS, write_model

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

SECONDS = 20
SIZES = {
    "vocab_size": len(TOKENS),
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16384,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("sound")
    configs = {
        "llama": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
        "qwen2": Qwen2Config(**SIZES),
        "gemma3": Gemma3TextConfig(**SIZES, head_dim=8),
    }
    paths = [make_tiny_model().write(folder / "smollm2.gguf")]
    for name, config in configs.items():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        paths.append(write_model(model, folder / f"{name}.gguf"))
    save_file({f"layer.{n}": torch.ones(2, 3) for n in range(9)}, folder / "a.safetensors")
    return [*paths, folder / "a.safetensors"]


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_files_are_refused_quickly_and_in_little_memory(
    files: list[Path], tmp_path: Path, seed: int
) -> None:
    command = [sys.executable, "-m", "tests.integration.checkpoint_fuzzer", str(seed), str(SECONDS)]
    result = subprocess.run(
        [*command, str(tmp_path), *map(str, files)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert found["refused"] > 100
    assert found["read"] > 10
    assert found["slowest_s"] < 2
    assert found["peak_mib"] < 128
