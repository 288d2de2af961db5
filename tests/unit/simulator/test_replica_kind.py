"""What was measured becomes replicas to simulate."""

from dataclasses import replace

import msgspec
import pytest

from engine.config import EngineConfig
from engine.performance_profile import EngineProfile, PerformanceProfile, StepCost
from engine.step_time import StepWork
from simulator.errors import FleetSpecError
from simulator.replica_kind import kind_of_profile, kinds_of_profile

NONE = EngineProfile(
    dtype="bfloat16",
    quantization="none",
    tensor_parallel_size=2,
    num_threads=3,
    kv_token_bytes=100,
    kv_cache_bytes=100_050,
    max_model_len=512,
    max_num_batched_tokens=64,
    max_num_seqs=8,
    cost=StepCost(0.01, 1e-4, 1e-3),
    cost_error=0.0,
    samples=[],
)
INT8 = msgspec.structs.replace(NONE, quantization="int8", tensor_parallel_size=1, num_threads=0)
PROFILE = PerformanceProfile("tiny", "a processor", [NONE, INT8])


def test_a_measured_engine_becomes_a_replica() -> None:
    none, int8 = kinds_of_profile(PROFILE)
    assert (none.label, none.num_devices, none.num_kv_tokens) == ("bfloat16, TP 2", 2, 1000)
    assert none.model.step_time_s(StepWork(10, 2)) == pytest.approx(0.013)
    assert dict(none.settings) == {
        "dtype": "bfloat16",
        "quantization": "none",
        "tensor_parallel_size": 2,
        "num_threads": 3,
    }
    assert "num_threads" not in dict(int8.settings)


def test_a_replica_takes_steps_as_large_as_were_measured_unless_it_is_told() -> None:
    kind = kinds_of_profile(PROFILE)[0]
    spec = kind.spec()
    assert (spec.config.max_num_seqs, spec.config.max_num_batched_tokens) == (8, 64)
    assert (spec.config.max_model_len, spec.num_devices) == (512, 2)
    config = EngineConfig(max_num_seqs=3)
    assert kind.spec(config).config == config
    assert replace(spec, config=config) == kind.spec(config)


def test_one_of_several_engines_is_named() -> None:
    assert kind_of_profile(PROFILE, "int8, TP 1").num_devices == 1
    only = msgspec.structs.replace(PROFILE, engines=[INT8])
    assert kind_of_profile(only, None).label == "int8, TP 1"
    with pytest.raises(FleetSpecError, match=r"2 engines: name one of 'bfloat16, TP 2', 'int8"):
        kind_of_profile(PROFILE, None)
    with pytest.raises(FleetSpecError, match="no engine 'int4'"):
        kind_of_profile(PROFILE, "int4")
