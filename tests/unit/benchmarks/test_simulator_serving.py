"""What the simulator is held against: requests to a real engine, timed."""

from dataclasses import replace

import pytest

from benchmarks.simulator_paced import CONFIG
from benchmarks.simulator_replay import ReplayTask
from benchmarks.simulator_serving import ReplayFigures, Served, as_workload, serve
from deployments.offline_requests import OfflineRequests
from engine.config import PacedConfig
from engine.engine import Engine
from engine.kv_geometry import KvGeometry, KvGroup
from engine.paced_runner import PacedRunner

SIZE = CONFIG.block_size_tokens
NUM_BLOCKS = 200
TASK = ReplayTask(
    num_requests=6, mean_prompt_tokens=20, mean_answer_tokens=4, num_shared_tokens=64, seed=3
)
REQUESTS = OfflineRequests(SIZE)


def make_engine() -> Engine:
    """Its steps take no time."""
    return Engine(
        CONFIG,
        geometry=KvGeometry((KvGroup((0,)),), 1, 1, SIZE, 2),
        num_blocks=NUM_BLOCKS,
        max_model_len=NUM_BLOCKS * SIZE,
        vocab_size=1000,
        runner=PacedRunner(
            PacedConfig(step_base_s=0.0),
            num_blocks=NUM_BLOCKS,
            block_size_tokens=SIZE,
            vocab_size=1000,
            eos_token_ids=[],
        ),
    )


def test_every_request_is_served_and_the_shared_prompt_found_cached() -> None:
    requests = TASK.draw(REQUESTS, 1000, 1e6)
    step_times_s: list[float] = []
    served = serve(make_engine(), requests, step_times_s.append)

    lengths = [len(request.ask.token_ids) for request in requests]
    assert sorted(request.num_prompt_tokens for request in served) == sorted(lengths)
    assert all(request.ttft_s > 0 and request.tpot_s > 0 for request in served)
    again = serve(
        make_engine(),
        [replace(r, due_s=0.02 * n) for n, r in enumerate(requests)],
        step_times_s.append,
    )
    assert sum(request.num_cached_tokens >= 64 for request in again) == TASK.num_requests - 1
    assert len(step_times_s) >= max(request.ask.sampling.max_tokens for request in requests)


def test_another_seed_asks_for_other_things() -> None:
    drawn = TASK.draw(REQUESTS, 1000, 2.0)
    assert drawn == TASK.draw(REQUESTS, 1000, 2.0)
    other = replace(TASK, seed=4).draw(REQUESTS, 1000, 2.0)
    keys = {key for request in drawn for key in request.ask.block_keys}
    assert keys.isdisjoint(key for request in other for key in request.ask.block_keys)
    assert [request.due_s for request in other] != [request.due_s for request in drawn]


def test_the_simulator_is_asked_the_same() -> None:
    drawn = TASK.draw(REQUESTS, 1000, 2.0)
    workload = as_workload(drawn, SIZE)
    for request, simulated in zip(drawn, workload.requests, strict=True):
        assert simulated.arrival_s == request.due_s
        assert simulated.num_prompt_tokens == len(request.ask.token_ids)
        assert simulated.num_answer_tokens == request.ask.sampling.max_tokens
        assert simulated.block_keys == request.ask.block_keys


def test_figures_are_means_over_requests_and_hits_over_tokens() -> None:
    served = [Served(0.1, 0.01, 100, 50), Served(0.3, 0.03, 300, 0)]
    figures = ReplayFigures.of_served(served)
    assert figures.ttft_s == pytest.approx(0.2)
    assert figures.tpot_s == pytest.approx(0.02)
    assert figures.hit_rate == pytest.approx(0.125)
