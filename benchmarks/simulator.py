"""The simulator beside what it simulates: ``python -m benchmarks.simulator --out FILE``.

- ``replay``: requests with one system prompt, at ``--load`` of what the engine bears, through a
  real engine in this process, in real time, and through a simulated one, whose step times are
  fitted to those of a replay of other requests before. Mean TTFT and TPOT agree within 15 %.
- ``paced``: the same for eight engines that take a large model's time.
- ``ray``: the same for the model served on Ray and asked over HTTP, with step times as ``headwater
  profile`` measures them before.
- ``requests_per_cpu_s``, ``requests_per_wall_s``: simulated requests per second of one core, with
  the full scheduler: requests of a conversation's lengths for eight replicas. The load average says
  whether others used the machine meanwhile.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.result import BenchmarkResult, CaseResult, ResultError
from benchmarks.serving_server import MeasurementError
from benchmarks.simulator_paced import replay_paced
from benchmarks.simulator_ray import RayTask, replay_on_ray
from benchmarks.simulator_replay import EngineReplay, ReplayTask
from benchmarks.simulator_serving import ReplayFigures
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
_NUM_PACED = 8
_PACED_REQUESTS_PER_S = 20.0
"""A quarter of a replica's time is prompts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    config = EngineConfig(num_threads=options.threads, max_num_seqs=16, kv_cache_bytes=512 * MIB)
    try:
        num_others = os.getloadavg()[0]
        results = [case for name in options.case for case in _CASES[name](options, config)]
        results.append(CaseResult(case="load_average_before", value=num_others, unit="processes"))
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
    except (EngineError, MeasurementError, ResultError, OSError) as error:
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
        seed=options.seed,
    )
    try:
        replay = engine.run(task, options.load)
    finally:
        engine.close()
    return [
        *_compared("replay", "the real engine", replay.real, replay.simulated),
        CaseResult(case="replay_step_fit_error", value=replay.cost_error, unit="mean, relative"),
        CaseResult(case="replay_requests_per_s", value=replay.requests_per_s, unit="requests/s"),
    ]


def _paced(options: argparse.Namespace, _config: EngineConfig) -> list[CaseResult]:
    task = ReplayTask(
        num_requests=options.requests,
        mean_prompt_tokens=600,
        mean_answer_tokens=40,
        num_shared_tokens=512,
        seed=options.seed,
    )
    real, simulated = replay_paced(_NUM_PACED, task, _PACED_REQUESTS_PER_S)
    return _compared("paced", f"{_NUM_PACED} paced engines", real, simulated)


def _ray(options: argparse.Namespace, config: EngineConfig) -> list[CaseResult]:
    task = RayTask(
        _MODEL,
        num_requests=options.requests,
        num_rounds=options.rounds,
        load=options.load,
        engine=config.model_dump(mode="json", exclude_unset=True),
        seed=options.seed,
    )
    replay = replay_on_ray(task)
    cases = [
        CaseResult(case="ray_idle_ttft_mean", value=replay.idle_ttft_s, unit="s"),
        CaseResult(case="ray_ttft_outside_steps", value=replay.fixed_s, unit="s"),
        CaseResult(case="ray_requests_per_s", value=replay.requests_per_s, unit="requests/s"),
    ]
    for number, done in enumerate(replay.rounds, start=1):
        name = f"ray_{number}"
        cases += _compared(name, "the real engine on Ray, over HTTP", done.real, done.simulated)
        cases.append(
            CaseResult(case=f"{name}_cpu_of_others", value=done.others_cpu_share, unit="of all")
        )
    return cases


def _compared(
    name: str, peer: str, real: ReplayFigures, simulated: ReplayFigures
) -> list[CaseResult]:
    figures = [
        ("ttft", "s", simulated.ttft_s, real.ttft_s),
        ("tpot", "s", simulated.tpot_s, real.tpot_s),
    ]
    return [
        *(
            CaseResult(
                case=f"{name}_{figure}_mean", value=ours, unit=unit, peer=peer, peer_value=theirs
            )
            for figure, unit, ours, theirs in figures
        ),
        *(
            CaseResult(
                case=f"{name}_{figure}_difference",
                value=abs(ours / theirs - 1),
                unit="of the real",
                limit=_AGREEMENT,
            )
            for figure, _, ours, theirs in figures
        ),
        CaseResult(
            case=f"{name}_hit_rate",
            value=simulated.hit_rate,
            unit="of prompt tokens",
            peer=peer,
            peer_value=real.hit_rate,
        ),
    ]


def _speed(options: argparse.Namespace, _config: EngineConfig) -> list[CaseResult]:
    """The best run of three, by processor time of its one thread, which what runs beside it changes
    little, and by the clock on the wall.
    """
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
    cpu_times_s, wall_times_s = [], []
    for _ in range(3):
        cpu_began_s, wall_began_s = time.process_time(), time.perf_counter()
        simulate(workload, FleetSpec(8, replica))
        cpu_times_s.append(time.process_time() - cpu_began_s)
        wall_times_s.append(time.perf_counter() - wall_began_s)
    return [
        CaseResult(
            case=f"requests_per_{kind}_s",
            value=len(workload) / min(times_s),
            unit="requests/s",
            limit=_GOAL_REQUESTS_PER_S,
        )
        for kind, times_s in (("cpu", cpu_times_s), ("wall", wall_times_s))
    ]


_CASES: Mapping[str, Callable[[argparse.Namespace, EngineConfig], list[CaseResult]]] = (
    MappingProxyType({"speed": _speed, "paced": _paced, "replay": _replay, "ray": _ray})
)


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="result file to write")
    add("--case", choices=[*_CASES], action="append", help="(default: all)")
    add("--requests", type=int, default=200, help="of each replay")
    add("--rounds", type=int, default=2, help="of the replay on Ray")
    add("--simulated", type=int, default=4000, help="requests whose simulation is timed")
    add("--load", type=float, default=0.7, help="share of what the engine bears")
    add("--threads", type=int, default=1, help="CPU threads of the engine")
    add("--seed", type=int, default=0, help="of lengths, arrivals and prompts")
    add(
        "--checkpoint",
        type=Path,
        default=checkpoint_path(headwater_home(), _MODEL),
        help="of the engine in this process (default: the quickstart's model, as on Ray)",
    )
    options = parser.parse_args(argv)
    options.case = options.case or [*_CASES]
    counts = (options.requests, options.rounds, options.simulated, options.threads)
    if min(counts) < 1 or options.load <= 0:
        parser.error("--requests, --rounds, --simulated, --threads and --load must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
