import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config import EngineConfig, EngineSpec
from engine.errors import CheckpointError, EngineConfigError
from engine.paced_runner import PacedRunner
from engine.runner import create_runner
from engine.torch_runner import TorchRunner
from tests.unit.engine.tiny_llama import (
    VOCAB_SIZE,
    make_reference,
    write_checkpoint,
    write_checkpoint_manifest,
)

BLOCK_BYTES = 2 * 2 * 2 * 8 * 16 * 4  # layers, K and V, KV heads, head_dim, tokens, float32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(make_reference(), tmp_path_factory.mktemp("model") / "checkpoint")


def make_spec(checkpoint: Path, *, weights_sha256: str | None = None, **config: Any) -> EngineSpec:
    config = {"dtype": "float32", "kv_cache_bytes": 10 * BLOCK_BYTES} | config
    return EngineSpec(
        model="tiny",
        checkpoint=checkpoint,
        weights_sha256=weights_sha256,
        config=EngineConfig(**config),
    )


def test_the_pool_and_the_context_follow_the_configuration(checkpoint: Path) -> None:
    loaded = create_runner(make_spec(checkpoint))
    assert isinstance(loaded.runner, TorchRunner)
    assert (loaded.num_blocks, loaded.max_model_len) == (10, 256)
    assert (loaded.vocab_size, loaded.eos_token_ids) == (VOCAB_SIZE, (2,))
    assert loaded.weights_revision == loaded.checkpoint.manifest.weights_sha256
    halved = create_runner(make_spec(checkpoint, dtype="bfloat16", max_model_len=100))
    assert (halved.num_blocks, halved.max_model_len) == (20, 100)


def test_a_paced_runner_has_the_pool_of_the_real_one_and_needs_no_torch(checkpoint: Path) -> None:
    spec = make_spec(checkpoint, runner="paced")
    loaded = create_runner(spec)
    assert isinstance(loaded.runner, PacedRunner)
    assert loaded.num_blocks == 10
    code = (
        "import sys; from engine.config import EngineSpec; from engine.runner import create_runner;"
        f"create_runner(EngineSpec.model_validate_json({spec.model_dump_json()!r}));"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_model_len": 257}, "set max_model_len to at most 256"),
        (
            {"kv_cache_bytes": 2 * BLOCK_BYTES - 1},
            f"holds 1 blocks .* at least {2 * BLOCK_BYTES}",
        ),
        (
            {"kv_cache_bytes": 2 * psutil.virtual_memory().total},
            r"free memory .* set kv_cache_bytes to at most \d+",
        ),
    ],
)
def test_what_does_not_fit_names_the_number_to_change(
    checkpoint: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineConfigError, match=message) as caught:
        create_runner(make_spec(checkpoint, **config))
    assert "\n" not in str(caught.value)


def test_a_device_that_is_not_there_is_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(EngineConfigError, match="set device to 'cpu'"):
        create_runner(make_spec(checkpoint, device="cuda"))


def test_other_weights_than_the_pinned_ones_are_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="is pinned"):
        create_runner(make_spec(checkpoint, weights_sha256="0" * 64))
    pinned = create_runner(make_spec(checkpoint)).weights_revision
    create_runner(make_spec(checkpoint, weights_sha256=pinned))


def test_a_missing_checkpoint_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*Pull the model"):
        create_runner(make_spec(tmp_path / "absent"))


def test_a_truncated_weights_file_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors has \d+ bytes instead of"):
        create_runner(make_spec(folder))
    # Even when the manifest was made from the broken file.
    write_checkpoint_manifest(folder)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        create_runner(make_spec(folder))
