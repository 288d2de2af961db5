import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.checkpoints.store import open_checkpoint
from engine.config import EngineConfig, EngineSpec
from engine.errors import CheckpointError, EngineConfigError
from engine.paced_runner import PacedRunner
from engine.runner import check_start, create_runner
from engine.sizing import size_engine
from engine.torch_runner import TorchRunner
from tests.unit.engine.tiny_models import (
    VOCAB_SIZE,
    make_tiny_model,
    write_checkpoint,
    write_checkpoint_manifest,
)

BLOCK_BYTES = 2 * 2 * 2 * 8 * 16 * 4  # layers, K and V, KV heads, head_dim, tokens, float32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = make_tiny_model("llama", tie_word_embeddings=True)
    return write_checkpoint(model, tmp_path_factory.mktemp("model") / "checkpoint")


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
    halved = create_runner(
        make_spec(checkpoint, dtype="bfloat16", compiled="never", max_model_len=100)
    )
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
    ],
)
def test_what_does_not_fit_names_the_number_to_change(
    checkpoint: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineConfigError, match=message) as caught:
        create_runner(make_spec(checkpoint, **config))
    assert "\n" not in str(caught.value)


def test_too_much_for_the_machine_is_found_before_anything_loads(checkpoint: Path) -> None:
    too_many_bytes = 2 * psutil.virtual_memory().total
    with pytest.raises(EngineConfigError, match=r"set kv_cache_bytes to at most \d+"):
        check_start(make_spec(checkpoint, kv_cache_bytes=too_many_bytes))
    check_start(make_spec(checkpoint, kv_cache_bytes=too_many_bytes, runner="paced"))
    check_start(make_spec(checkpoint))


def test_a_model_with_windows_has_a_kv_group_for_each_share_of_its_layers(tmp_path: Path) -> None:
    gemma = make_tiny_model("gemma3_text", num_hidden_layers=3, sliding_window=20)
    checkpoint = write_checkpoint(gemma, tmp_path / "checkpoint")
    types = ["sliding_attention"] * 2 + ["full_attention"]
    config_path = checkpoint / "config.json"
    hf_config = json.loads(config_path.read_text()) | {"layer_types": types}
    config_path.write_text(json.dumps(hf_config))
    write_checkpoint_manifest(checkpoint)
    loaded = create_runner(make_spec(checkpoint))
    # A block holds one layer here, so the same memory has more of them.
    assert [group.layers for group in loaded.geometry.groups] == [(2,), (0,), (1,)]
    assert [group.window for group in loaded.geometry.groups] == [None, 20, 20]
    assert loaded.num_blocks == 20
    with pytest.raises(EngineConfigError, match=f"at least {6 * BLOCK_BYTES // 2}"):
        create_runner(make_spec(checkpoint, kv_cache_bytes=5 * BLOCK_BYTES // 2))


def test_a_small_pool_bounds_what_one_request_can_hold(checkpoint: Path) -> None:
    opened = open_checkpoint(checkpoint)
    small = make_spec(checkpoint, kv_cache_bytes=3 * BLOCK_BYTES).config
    assert size_engine(small, opened) == (256, 3, 48)
    large = make_spec(checkpoint, kv_cache_bytes=30 * BLOCK_BYTES).config
    assert size_engine(large, opened) == (256, 30, 256)


def test_the_start_says_what_the_memory_is_for_and_whether_all_fit(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="engine.memory_report")

    def reported() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "engine.memory_report"]

    create_runner(make_spec(checkpoint, kv_cache_bytes=64 * BLOCK_BYTES, max_num_seqs=4))
    (line,) = reported()
    blocks = r"KV pool 0\.3 MB \(64 blocks of 16 tokens\)"
    assert re.fullmatch(rf"weights 0\.1 MB \| workspace [\d.]+ MB \| {blocks}", line)
    caplog.clear()
    create_runner(make_spec(checkpoint, kv_cache_bytes=63 * BLOCK_BYTES, max_num_seqs=4))
    assert "max_num_seqs is 4, but the KV pool holds 3 sequences" in reported()[1]


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
