"""How much an engine of several ranks holds, from shapes alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoints.store import Checkpoint, open_checkpoint
from engine.config import EngineConfig, RankSpec
from engine.errors import EngineConfigError
from engine.memory_report import check_memory
from engine.models.registry import read_model_config
from engine.models.shard import shard_model, shard_parameters
from engine.native.pack_path import packed_path
from engine.sizing import (
    check_without_compiled,
    engine_geometry,
    estimate_memory,
    reason_against_compiled,
    size_engine,
)
from engine.torch_loading import load_torch_runner
from tests.unit.engine.native.test_toolchain import GNU, write_script
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

HEAD_BYTES = 2 * 2 * 8 * 16 * 4  # layers, K and V, head_dim, tokens, float32
NUM_HEADS, NUM_KV_HEADS = 4, 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model = make_tiny_model("llama", intermediate_size=48)
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    return open_checkpoint(write_checkpoint(model, folder))


def config(size: int, **changes: Any) -> EngineConfig:
    values = {"dtype": "float32", "kv_cache_bytes": 40 * NUM_KV_HEADS * HEAD_BYTES}
    return EngineConfig(**(values | {"tensor_parallel_size": size} | changes))


@pytest.mark.parametrize(("size", "kv_heads", "num_blocks"), [(1, 2, 40), (2, 1, 40), (4, 1, 20)])
def test_ranks_share_the_pool_and_hold_twice_what_is_replicated(
    checkpoint: Checkpoint, size: int, kv_heads: int, num_blocks: int
) -> None:
    geometry = engine_geometry(config(size), read_model_config(checkpoint.config))
    assert geometry.block_bytes == kv_heads * HEAD_BYTES
    assert size_engine(config(size), checkpoint).num_blocks == num_blocks
    memory = estimate_memory(config(size), checkpoint)
    assert size * memory.kv_pool_bytes == 40 * NUM_KV_HEADS * HEAD_BYTES


def test_the_report_is_of_one_rank_and_the_check_of_all(checkpoint: Checkpoint) -> None:
    whole, shared = (estimate_memory(config(size), checkpoint) for size in (1, 2))
    model = read_model_config(checkpoint.config)
    shard = shard_model(model, RankSpec(0, 2))
    assert shared.weight_bytes == 4 * shard_parameters(model, shard) < whole.weight_bytes
    assert str(shared).startswith("on each of 2 ranks: weights ")
    assert str(whole).startswith("weights ")
    needed = config(2).kv_cache_bytes + 2 * (shared.private_weight_bytes + shared.workspace_bytes)
    check_memory(config(2), shared, available_bytes=needed)
    with pytest.raises(EngineConfigError, match="weights and workspace leave"):
        check_memory(config(2), shared, available_bytes=needed - 1)


def test_columns_of_a_mapped_tensor_are_copied(checkpoint: Checkpoint) -> None:
    mapped = {"weight_layout": "mapped"}
    assert estimate_memory(config(1, **mapped), checkpoint).private_weight_bytes == 0
    model = read_model_config(checkpoint.config)
    columns = NUM_HEADS * model.head_dim * model.hidden_size + 48 * model.hidden_size
    expected = 4 * model.num_layers * columns // 2
    assert estimate_memory(config(2, **mapped), checkpoint).private_weight_bytes == expected


def test_a_number_of_ranks_that_cannot_be_names_those_that_can(checkpoint: Checkpoint) -> None:
    with pytest.raises(EngineConfigError, match=r"tensor_parallel_size is 3.* one of 1, 2, 4"):
        size_engine(config(3), checkpoint)


def test_a_pool_that_is_too_small_counts_all_ranks(checkpoint: Checkpoint) -> None:
    least = 2 * 4 * HEAD_BYTES
    assert size_engine(config(4, kv_cache_bytes=least), checkpoint).num_blocks == 2
    with pytest.raises(EngineConfigError, match=rf"on each of 4 ranks: set .* at least {least}"):
        size_engine(config(4, kv_cache_bytes=least - 1), checkpoint)


@pytest.fixture
def compiled(checkpoint: Checkpoint) -> EngineConfig:
    """What the compiled step is reckoned with for."""
    settings = config(1, dtype="bfloat16")
    if reason_against_compiled(settings, checkpoint) is not None:
        pytest.skip("this machine can't run the compiled step")
    return settings


def test_packed_weights_that_cannot_be_written_are_private(
    checkpoint: Checkpoint, compiled: EngineConfig, tmp_path: Path
) -> None:
    absent = replace(checkpoint, path=tmp_path / "absent")
    mapped = estimate_memory(compiled, checkpoint).private_weight_bytes
    private = estimate_memory(compiled, absent).private_weight_bytes
    assert private > mapped
    absent.path.mkdir()
    packed_path(absent.path, compiled, RankSpec()).touch()
    assert estimate_memory(compiled, absent).private_weight_bytes == mapped


def test_memory_is_checked_again_when_the_compiled_step_cannot_be_had(
    checkpoint: Checkpoint, compiled: EngineConfig
) -> None:
    torch_bytes = estimate_memory(compiled, checkpoint, may_compile=False).computing_bytes
    needed = compiled.kv_cache_bytes + torch_bytes
    check_without_compiled(compiled, checkpoint, available_bytes=needed)
    with pytest.raises(EngineConfigError, match="weights and workspace leave"):
        check_without_compiled(compiled, checkpoint, available_bytes=needed - 1)
    # What was not reckoned with has been checked before.
    never = compiled.model_copy(update={"compiled": "never"})
    check_without_compiled(never, checkpoint, available_bytes=0)


def test_a_failed_compiler_is_followed_by_the_check(
    checkpoint: Checkpoint,
    compiled: EngineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_script(tmp_path, f"[ $# = 1 ] || exit 1; {GNU}")
    monkeypatch.setenv("PATH", str(tmp_path))
    huge = compiled.model_copy(update={"kv_cache_bytes": 2**60})
    with pytest.raises(EngineConfigError, match="weights and workspace leave"):
        load_torch_runner(
            huge,
            read_model_config(checkpoint.config),
            checkpoint,
            num_blocks=8,
            max_request_tokens=64,
        )
