"""The arithmetic of the design case, against figures worked out by hand or by other code."""

import json
from dataclasses import replace

import msgspec
import pytest

from benchmarks.design_case import (
    ChannelCost,
    DesignCase,
    GatewayCost,
    frame_bytes,
    key_event_bytes,
    submit_bytes,
)
from benchmarks.machine import REPOSITORY
from engine.model_size import model_size
from engine.models.registry import read_model_config

CONFIG = REPOSITORY / "tests" / "data" / "model_configs" / "llama-3.1-70b-instruct.json"


def test_the_model_is_the_one_of_its_config() -> None:
    size = model_size(read_model_config(json.loads(CONFIG.read_text("utf-8"))), dtype_bytes=2)
    assert (size.num_parameters, size.kv_token_bytes) == (
        DesignCase().num_parameters,
        DesignCase().kv_token_bytes,
    )


def test_a_replica_is_busy_for_exactly_the_time_it_has() -> None:
    case = DesignCase()
    tpot_s = case.tpot_s
    assert tpot_s is not None
    steps_per_s = 1 / tpot_s
    rate = case.requests_per_replica_s
    running = case.num_running / case.num_replicas
    in_steps = steps_per_s * (case.weights_s + running * case.sequence_s)
    # Prefills lie between the steps: the time per token has their part in it.
    assert in_steps + rate * case.prefill_s == pytest.approx(1.0)


def test_the_replicas_needed_meet_the_planned_time_and_one_fewer_does_not() -> None:
    case = DesignCase()
    enough = replace(case, num_replicas=case.num_replicas_needed)
    too_few = replace(case, num_replicas=case.num_replicas_needed - 1)
    assert enough.tpot_s is not None
    assert enough.tpot_s <= case.tpot_target_s
    assert too_few.tpot_s is not None
    assert too_few.tpot_s > case.tpot_target_s


def test_a_fleet_that_cannot_keep_up_has_no_time_per_token() -> None:
    assert DesignCase(num_replicas=300).tpot_s is None


def test_a_channel_costs_by_frames_and_by_deltas() -> None:
    cost = ChannelCost.between((64, 64 / 500e-6), (256, 256 / 1_460e-6))
    assert cost.delta_s == pytest.approx(5e-6)
    assert cost.frame_s == pytest.approx(180e-6)


def test_gateways_are_as_many_as_their_load_asks_for() -> None:
    case = DesignCase()
    cost = GatewayCost(3e-3, 0.3e-6, ChannelCost(20e-6, 5e-6))
    found = case.gateways(cost)
    assert found.channel_cores is not None
    cores = found.prompt_cores + found.text_cores + found.stream_cores + found.channel_cores
    assert cores <= found.num_gateways * case.core_load < cores + 2 * case.core_load
    assert 1.0 < found.deltas_per_frame < case.num_running / case.num_replicas
    without = case.gateways(cost._replace(channel=None))
    assert without.channel_cores is None
    assert without.num_gateways < found.num_gateways


def test_sizes_are_those_of_the_messages() -> None:
    case = DesignCase()
    prompt_bytes, keys_bytes = case.prompt_tokens * 5, case.prompt_tokens // 16 * 34
    assert keys_bytes < submit_bytes(case) < prompt_bytes + keys_bytes + 300
    assert key_event_bytes() == len(msgspec.msgpack.encode(bytes(32)))
    assert frame_bytes(2) - frame_bytes(1) > 32  # a request id, at least
