"""The simulator beside what it simulates: ``python -m benchmarks.simulator --out FILE``.

- ``replay``: requests with one system prompt, at ``--load`` of what the engine bears, through a
  real engine in this process, in real time, and through a simulated one whose step times are fitted
  to the steps that the real one took. Mean TTFT and TPOT agree within 15 %.
- ``requests_per_s``: simulated requests per second of one core, with the full scheduler: requests
  of a conversation's lengths for eight replicas.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.result import BenchmarkResult, CaseResult, ResultError
from benchmarks.simulator_replay import EngineReplay, ReplayTask
from deployments.environment import headwater_home
from engine.checkpoints.store import checkpoint_path
from engine.config import MIB, EngineConfig, EngineSpec
from engine.errors import EngineError
from engine.performance_profile import StepCost
from engine.runner import create_runner
from simulator.fleet import FleetSpec, simulate
from simulator.performance import LinearModel
from simulator.replica_spec import ReplicaSpec
from simulator.synthetic import poisson

_MODEL = "smollm2-135m-instruct"
_AGREEMENT = 0.15
_GOAL_REQUESTS_PER_S = 2000.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    config = EngineConfig(num_threads=options.threads, max_num_seqs=16, kv_cache_bytes=512 * MIB)
    try:
        results = [_speed(options), *_replay(options, config)]
        for case in results:
            print(f"{case.case:28} {case.value:12.4f} {case.unit}", flush=True)
        BenchmarkResult.of_this_machine(
            name="simulator",
            config={
                "checkpoint": options.checkpoint.name,
                "num_requests": options.requests,
                "load": options.load,
                "engine": config.model_dump(mode="json"),
            },
            seed=options.seed,
            results=results,
        ).write(options.out)
    except (EngineError, ResultError, OSError) as error:
        print(f"benchmarks.simulator: {error}", file=sys.stderr)
        return 1
    return 0


def _replay(options: argparse.Namespace, config: EngineConfig) -> list[CaseResult]:
    spec = EngineSpec(model="benchmark", checkpoint=options.checkpoint, config=config)
    engine = EngineReplay(create_runner(spec), config)
    task = ReplayTask(
        num_requests=options.requests,
        mean_prompt_tokens=120,
        mean_answer_tokens=30,
        num_shared_tokens=256,
        load=options.load,
        seed=options.seed,
    )
    try:
        replay = engine.run(task)
    finally:
        engine.close()
    real, simulated = replay.real, replay.simulated
    return [
        CaseResult(
            case="replay_ttft_mean",
            value=simulated.ttft_s,
            unit="s",
            peer="the real engine",
            peer_value=real.ttft_s,
        ),
        CaseResult(
            case="replay_tpot_mean",
            value=simulated.tpot_s,
            unit="s",
            peer="the real engine",
            peer_value=real.tpot_s,
        ),
        CaseResult(
            case="replay_hit_rate",
            value=simulated.hit_rate,
            unit="of prompt tokens",
            peer="the real engine",
            peer_value=real.hit_rate,
        ),
        CaseResult(
            case="replay_ttft_difference",
            value=abs(simulated.ttft_s / real.ttft_s - 1),
            unit="of the real",
            limit=_AGREEMENT,
        ),
        CaseResult(
            case="replay_tpot_difference",
            value=abs(simulated.tpot_s / real.tpot_s - 1),
            unit="of the real",
            limit=_AGREEMENT,
        ),
        CaseResult(case="replay_step_fit_error", value=replay.cost_error, unit="mean, relative"),
        CaseResult(case="replay_requests_per_s", value=replay.requests_per_s, unit="requests/s"),
    ]


def _speed(options: argparse.Namespace) -> CaseResult:
    """Processor time of one thread, so that what runs beside it counts little; the best run."""
    workload = poisson(
        num_requests=options.simulated,
        requests_per_s=3.4,
        num_prompt_tokens=12_035,
        num_answer_tokens=343,
        num_shared_tokens=4096,
        seed=options.seed,
        block_size_tokens=512,
    )
    replica = ReplicaSpec(LinearModel(StepCost(0.015, 1 / 6000, 0.0002)), 3_072_000)
    times_s = []
    for _ in range(3):
        started_s = time.process_time()
        simulate(workload, FleetSpec(8, replica))
        times_s.append(time.process_time() - started_s)
    return CaseResult(
        case="requests_per_s",
        value=len(workload) / min(times_s),
        unit="requests/s",
        limit=_GOAL_REQUESTS_PER_S,
    )


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="result file to write")
    add("--requests", type=int, default=200, help="of the replay")
    add("--simulated", type=int, default=4000, help="requests whose simulation is timed")
    add("--load", type=float, default=0.7, help="share of what the engine bears")
    add("--threads", type=int, default=1, help="CPU threads of the engine")
    add("--seed", type=int, default=0, help="of lengths, arrivals and prompts")
    add("--checkpoint", type=Path, default=checkpoint_path(headwater_home(), _MODEL))
    options = parser.parse_args(argv)
    if min(options.requests, options.simulated, options.threads) < 1 or options.load <= 0:
        parser.error("--requests, --simulated, --threads and --load must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
