"""Requests in turn to real engines that compute nothing and take the time of a large model, in real
time, and to as many simulated ones.

Must not know what is done with the figures.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.simulator_replay import ReplayTask
from benchmarks.simulator_serving import (
    ReplayFigures,
    Served,
    TimedRequest,
    as_workload,
    serve,
)
from deployments.offline_requests import OfflineRequests
from engine.config import EngineConfig, PacedConfig
from engine.engine import Engine
from engine.kv_geometry import KvGeometry, KvGroup
from engine.paced_runner import PacedRunner
from engine.performance_profile import StepCost
from simulator.fleet import FleetSpec, simulate
from simulator.performance import LinearModel
from simulator.replica_spec import ReplicaSpec

CONFIG = EngineConfig(
    runner="paced",
    max_num_seqs=64,
    max_num_batched_tokens=1024,
    # About what a 70B model takes on eight H100s.
    paced=PacedConfig(step_base_s=0.025, per_decode_s=0.0001, per_prefill_token_s=0.0001),
)
_NUM_BLOCKS = 4000
_VOCAB_SIZE = 1000


def replay_paced(
    num_engines: int, task: ReplayTask, requests_per_s: float
) -> tuple[ReplayFigures, ReplayFigures]:
    """The real and the simulated figures. A thread per engine."""
    size = CONFIG.block_size_tokens
    requests = task.draw(OfflineRequests(size), _VOCAB_SIZE, requests_per_s)
    with ThreadPoolExecutor(num_engines) as threads:
        parts = [requests[number::num_engines] for number in range(num_engines)]
        served = [request for part in threads.map(_serve, parts) for request in part]
    paced = CONFIG.paced
    cost = StepCost(
        paced.step_base_s,
        paced.per_prefill_token_s,
        paced.per_decode_s,
        paced.per_context_token_s,
        paced.per_attended_token_s,
    )
    replica = ReplicaSpec(LinearModel(cost), _NUM_BLOCKS * size, config=CONFIG)
    spec = FleetSpec(num_engines, replica, policy="round_robin")
    outcome = simulate(as_workload(requests, size), spec)
    return ReplayFigures.of_served(served), ReplayFigures.of_outcome(outcome)


def _serve(requests: Sequence[TimedRequest]) -> list[Served]:
    size = CONFIG.block_size_tokens
    engine = Engine(
        CONFIG,
        geometry=KvGeometry((KvGroup((0,)),), 1, 1, size, 2),
        num_blocks=_NUM_BLOCKS,
        max_model_len=_NUM_BLOCKS * size,
        vocab_size=_VOCAB_SIZE,
        runner=PacedRunner(
            CONFIG.paced,
            num_blocks=_NUM_BLOCKS,
            block_size_tokens=size,
            vocab_size=_VOCAB_SIZE,
            eos_token_ids=[],
        ),
    )
    try:
        return serve(engine, requests, lambda _: None)
    finally:
        engine.close()
