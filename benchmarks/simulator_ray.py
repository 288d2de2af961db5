"""The same requests to a real model served on Ray, over HTTP at their times, and to a simulated
replica, which is told of step times by a performance profile taken beforehand.

Both sides' requests, warm-up included, are those of `benchmarks.routing_http`. What HTTP, gateway
and transport take before the first token is measured with short requests that come one at a time.
Must not know what is done with the figures.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoTokenizer

from benchmarks.chat_workload import ChatWorkload
from benchmarks.fleet_file import FleetShape, fleets_file
from benchmarks.load import OpenLoop
from benchmarks.machine import REPOSITORY
from benchmarks.result import CaseResult
from benchmarks.routing_http_contest import RUN_TIMEOUT_S, warm_up_workload
from benchmarks.routing_http_fleet import busy_shares, read_cpu
from benchmarks.routing_http_scenarios import Scenario
from benchmarks.routing_http_simulated import Encode, RoundSimulator, SimulatedRound
from benchmarks.serving_options import parse_target
from benchmarks.serving_server import MeasurementError, Server
from benchmarks.simulator_serving import ReplayFigures
from deployments.environment import headwater_home
from deployments.local_environment import free_port
from deployments.local_serve import LocalServe
from deployments.report import State
from engine.checkpoints.store import checkpoint_path
from engine.config import EngineConfig
from engine.performance_profile import PerformanceProfile
from simulator.replica_kind import ReplicaKind, kind_of_profile

_START_TIMEOUT_S = 200.0
_PROFILE_TIMEOUT_S = 300.0
_NUM_AT_ONCE = 24
_ALL_AT_ONCE_PER_S = 1e6
_IDLE = ChatWorkload(
    seed=1,
    num_turns=24,
    num_system_prompts=1,
    system_words=256,
    mean_user_words=1,
    mean_answer_tokens=2,
    max_history_words=0,
)
"""One session: each turn waits for the answer to the one before."""
_IDLE_LOAD = OpenLoop(
    1.0, _IDLE.num_turns, RUN_TIMEOUT_S, 0, session_len=_IDLE.num_turns, think_s=0.2
)


@dataclass(frozen=True, slots=True)
class RayRound:
    """One replay, done and predicted."""

    real: ReplayFigures
    simulated: ReplayFigures
    """With the fixed time before the first token."""
    others_cpu_share: float
    """Of all cores meanwhile, by programs that had nothing to do with it."""


@dataclass(frozen=True, slots=True)
class RayReplay:
    rounds: tuple[RayRound, ...]
    idle_ttft_s: float
    """Of requests that are alone, over HTTP."""
    fixed_s: float
    """Of that, what is not the engine's steps."""
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class RayTask:
    """What is asked."""

    model: str
    """In the model cache."""
    num_requests: int
    """Of each round."""
    num_rounds: int
    load: float
    """The share of the requests that are answered when they come at once."""
    engine: Mapping[str, Any]
    """Its configuration."""
    seed: int

    @property
    def scenario(self) -> Scenario:
        chat = ChatWorkload(
            seed=self.seed,
            num_turns=1,
            num_system_prompts=1,
            system_words=256,
            mean_user_words=120,
            mean_answer_tokens=30,
        )
        return Scenario("ray", self.engine, 1, 1, chat, 1.0, self.num_requests)


def replay_on_ray(task: RayTask) -> RayReplay:
    """Profiles the engine, then serves it. Raises `MeasurementError`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        fleets = fleets_file(FleetShape(task.model, 1, 1, task.engine), port)
        fleets["applications"] = [a for a in fleets["applications"] if a["name"] != "peer"]
        file.write_text(yaml.safe_dump(fleets), "utf-8")
        kind = _profile(file, Path(folder) / "profile.json")
        with LocalServe(file, health_url=f"{url}/health") as local:
            report = local.wait_until_ready(threading.Event(), timeout_s=_START_TIMEOUT_S)
            if report.state is not State.READY:
                raise MeasurementError(f"Serve did not start: {report}")
            replay = _Replay(task, kind, url, local.pid)
            return asyncio.run(replay.run())


def _profile(file: Path, out: Path) -> ReplicaKind:
    command = [sys.executable, "-m", "deployments.cli", "profile", str(file), "--out", str(out)]
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROFILE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"headwater profile took over {_PROFILE_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise MeasurementError(f"headwater profile failed: {done.stderr.strip()}")
    print(done.stdout.strip(), file=sys.stderr)
    return kind_of_profile(PerformanceProfile.read(out), None)


class _Replay:
    """Of one task, against the running fleet."""

    def __init__(self, task: RayTask, kind: ReplicaKind, url: str, serve_pid: int) -> None:
        self._task = task
        self._kind = kind
        self._url = url
        self._serve_pid = serve_pid
        self._encode = _encode_with(checkpoint_path(headwater_home(), task.model))

    async def run(self) -> RayReplay:
        task, scenario = self._task, self._task.scenario
        target = parse_target(self._url, model=task.model, api_key=None, allow_remote=False)
        server = Server(target)
        try:
            chat, num_requests = warm_up_workload(scenario)
            await server.warm_up(chat, num_requests, RUN_TIMEOUT_S)
            idle_chat = replace(_IDLE, seed=task.seed)
            idle = _Values(await server.run(_IDLE_LOAD, idle_chat, run="idle"))
            at_once = OpenLoop(_ALL_AT_ONCE_PER_S, _NUM_AT_ONCE, RUN_TIMEOUT_S, task.seed)
            most = _Values(await server.run(at_once, scenario.workload, run="capacity"))
            simulated_idle = self._simulate(idle_chat, _IDLE_LOAD, "idle")
            fixed_s = idle.seconds("ttft_mean") - simulated_idle.ttft_s
            requests_per_s = task.load * most.value("requests_per_s")
            rounds = [
                await self._round(server, number, requests_per_s, fixed_s)
                for number in range(task.num_rounds)
            ]
        finally:
            server.close()
        return RayReplay(
            tuple(rounds),
            idle.seconds("ttft_mean"),
            fixed_s,
            requests_per_s,
        )

    async def _round(
        self, server: Server, number: int, requests_per_s: float, fixed_s: float
    ) -> RayRound:
        task, chat = self._task, self._task.scenario.workload
        load = OpenLoop(requests_per_s, task.num_requests, RUN_TIMEOUT_S, task.seed + number)
        before = read_cpu(self._serve_pid)
        real = _Values(await server.run(load, chat, run=f"{number}"))
        fleet, machine = busy_shares(before, read_cpu(self._serve_pid))
        if real.value("succeeded") < task.num_requests:
            raise MeasurementError("not every request was answered: nothing to compare")
        simulated = self._simulate(chat, load, f"{number}")
        return RayRound(
            ReplayFigures(
                real.seconds("ttft_mean"), real.seconds("tpot_mean"), real.value("hit_rate")
            ),
            ReplayFigures(simulated.ttft_s + fixed_s, simulated.tpot_s, simulated.hit_rate),
            others_cpu_share=max(0.0, machine - fleet),
        )

    def _simulate(self, chat: ChatWorkload, load: OpenLoop, run: str) -> SimulatedRound:
        """With the profile's step times."""
        simulated = replace(self._task.scenario, workload=chat, think_s=load.think_s)
        config = EngineConfig.model_validate(dict(simulated.engine))
        replica = self._kind.spec(config)
        simulator = RoundSimulator(simulated, self._encode, replica)
        return simulator.run("headwater", load, run, warm_up_workload(self._task.scenario))


class _Values:
    """Of a run's cases, by name."""

    def __init__(self, cases: Sequence[CaseResult]) -> None:
        self._values = {case.case: case.value for case in cases}

    def value(self, case: str) -> float:
        return self._values[case]

    def seconds(self, case: str) -> float:
        return self._values[case] / 1e3


def _encode_with(checkpoint: Path) -> Encode:
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)

    def encode(messages: Sequence[Mapping[str, str]]) -> list[int]:
        token_ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        return token_ids

    return encode
