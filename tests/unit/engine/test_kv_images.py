"""Images of engines whose KV is not interchangeable are never taken for each other."""

from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.kv_geometry import KvGeometry, KvGroup
from engine.kv_images import image_layout, supports_tiers

GEOMETRY = KvGeometry(
    (KvGroup((0, 1, 2)),), num_kv_heads=2, head_dim=8, block_size_tokens=16, bytes_per_element=2
)
ROOT_KEY = b"r" * 16


@pytest.mark.parametrize(
    "changed",
    [
        {"root_key": b"s" * 16},
        {"runner": "paced"},
        {"dtype": "float32"},
        {"quantization": "int8"},
        {"tensor_parallel_size": 2},
        {"num_kv_heads": 1, "head_dim": 16},
        {"groups": (KvGroup((0, 1)),)},
    ],
)
def test_what_makes_other_kv_makes_another_fingerprint(changed: dict[str, Any]) -> None:
    plain = image_layout(EngineConfig(), GEOMETRY, ROOT_KEY)
    root_key = changed.pop("root_key", ROOT_KEY)
    of_geometry = {name: changed.pop(name) for name in list(changed) if hasattr(GEOMETRY, name)}
    other = image_layout(EngineConfig(**changed), replace(GEOMETRY, **of_geometry), root_key)
    assert other.fingerprint != plain.fingerprint


def test_how_an_engine_runs_makes_no_other_kv() -> None:
    quick = EngineConfig(num_threads=4, max_num_batched_tokens=64, compiled="never")
    assert image_layout(quick, GEOMETRY, ROOT_KEY) == image_layout(
        EngineConfig(), GEOMETRY, ROOT_KEY
    )


def test_an_image_holds_a_block_of_every_rank() -> None:
    layout = image_layout(EngineConfig(tensor_parallel_size=3), GEOMETRY, ROOT_KEY)
    assert (layout.num_shards, layout.shard_bytes) == (3, GEOMETRY.block_bytes)


@pytest.mark.parametrize(("block_bytes", "shard_bytes"), [(1, 17 * 8), (4096, 4096)])
def test_a_paced_image_is_as_large_as_configured_and_holds_its_digests(
    block_bytes: int, shard_bytes: int
) -> None:
    config = EngineConfig.model_validate({"runner": "paced", "paced": {"block_bytes": block_bytes}})
    assert image_layout(config, GEOMETRY, ROOT_KEY).shard_bytes == shard_bytes


@pytest.mark.parametrize(
    ("groups", "is_supported"),
    [
        ((KvGroup((0, 1)),), True),
        ((KvGroup((0, 1), window=8),), False),
        ((KvGroup((0,)), KvGroup((1,), window=8)), False),
    ],
)
def test_windows_keep_kv_from_leaving(groups: tuple[KvGroup, ...], is_supported: bool) -> None:
    assert supports_tiers(replace(GEOMETRY, groups=groups)) == is_supported
