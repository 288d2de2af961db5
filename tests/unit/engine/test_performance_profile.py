"""A performance profile comes back from its file as it was, or the fault is named."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.performance_profile import (
    EngineProfile,
    PerformanceProfile,
    ProfileFileError,
    StepCost,
    StepSample,
)
from engine.step_time import StepWork

COST = StepCost(0.01, 1e-4, 1e-3, 1e-6, 1e-8)
ENGINE = EngineProfile(
    dtype="bfloat16",
    quantization="int8",
    tensor_parallel_size=2,
    num_threads=1,
    kv_token_bytes=1024,
    kv_cache_bytes=2**20,
    max_model_len=256,
    max_num_batched_tokens=64,
    max_num_seqs=8,
    cost=COST,
    cost_error=0.02,
    samples=[StepSample(16, 2, 65.5, 128.0, 0.0125, 5)],
)
PROFILE = PerformanceProfile("tiny", "a processor", [ENGINE], {"torch": "2"}, "2020-01-01T00:00Z")


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    assert PerformanceProfile.read(path) == PROFILE


def test_a_step_takes_the_sum_of_its_parts() -> None:
    assert COST.predict(StepWork(10, 3, 200, 500.0)) == pytest.approx(0.014205)
    assert ENGINE.samples[0].work == StepWork(16, 2, 66, 128.0)


def test_engines_of_a_file_are_told_apart() -> None:
    assert ENGINE.label == "int8, TP 2"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 7}, "has format 7"),
        ({"engines": []}, "holds no engine"),
        ({"engines": 3}, "Expected `array`"),
        ({"modell": "x"}, "unknown field `modell`"),
        ({"engine": {"kv_token_bytes": 0}}, "a size below 1"),
        ({"engine": {"cost": {"base_s": -1.0}}}, "negative or infinite"),
        ({"engine": {"cost": {"base_s": 0.0}}}, "take no time"),
        ({"engine": {"cost": {"base_s": 1e308}}}, "longer than an hour"),
        ({"engine": {"kv_cache_bytes": 10**30}}, "tokens in its KV"),
        ({"engine": {"max_num_seqs": 10**9}}, "sequences in a step"),
        ({"engine": {"samples": [[]]}}, "Expected `object`"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    data = json.loads(path.read_text())
    data["engines"][0] |= change.pop("engine", {})
    path.write_text(json.dumps(data | change))
    with pytest.raises(ProfileFileError, match=complaint) as caught:
        PerformanceProfile.read(path)
    assert str(path) in str(caught.value)


def test_engines_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    msgspec.structs.replace(PROFILE, engines=[ENGINE, ENGINE]).write(path)
    with pytest.raises(ProfileFileError, match="two engines of one precision"):
        PerformanceProfile.read(path)


def test_a_row_without_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    path.write_text(path.read_text().replace("0.0125", "0.0"))
    with pytest.raises(ProfileFileError, match="row 0"):
        PerformanceProfile.read(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_other_content_is_no_profile(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ProfileFileError, match="no performance profile"):
        PerformanceProfile.read(path)


def test_an_absent_file_is_said_with_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileFileError, match="headwater profile MODEL"):
        PerformanceProfile.read(tmp_path / "absent.json")
