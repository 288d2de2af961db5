"""Starts the peers of the engine benchmark, each as its own documentation says is fast."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine_cases import Case
from benchmarks.peer_environment import (
    VLLM_NAME,
    VLLM_REMOVED,
    VLLM_REQUIREMENTS,
    ensure_environment,
)
from benchmarks.peer_process import PeerProcess
from benchmarks.statistics import percentile
from benchmarks.vllm_environment import vllm_environment
from deployments.environment import child_environment

PEER_NAMES = (VLLM_NAME, "transformers")
_NUM_TRIALS = 3
_VLLM_KV_CACHE_GIB = 2


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """What all peers are started with."""

    checkpoint: Path
    dtype: str
    cores: Sequence[int]
    """As many as our engine has threads."""
    peers_home: Path
    log_folder: Path
    token_budgets: Sequence[int]
    """For vLLM's ``max_num_batched_tokens``: the fastest in prefill is taken."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that is ready, and what the result file says of it."""

    process: PeerProcess
    settings: Mapping[str, str]
    """Environment variables set for it."""
    trials: dict[str, dict[str, float]] = field(default_factory=dict)
    """Tokens per second by token budget and case, of which one was chosen."""

    @property
    def name(self) -> str:
        return self.process.name

    def can_measure(self, case: Case) -> bool:
        return not (self.name == "transformers" and case.kind == "mixed")


def start_peer(name: str, setup: PeerSetup, cases: Sequence[Case]) -> Peer:
    """Raises PeerEnvironmentError or PeerFailure."""
    if name == VLLM_NAME:
        return _start_vllm(setup, cases)
    settings = {"OMP_NUM_THREADS": str(len(setup.cores)), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.peer_transformers"]
    command += ["--checkpoint", str(setup.checkpoint), "--dtype", setup.dtype]
    command += ["--threads", str(len(setup.cores))]
    return Peer(_start(name, command, settings, setup), settings)


def fastest_budget(trials: Mapping[str, Mapping[str, float]]) -> str:
    """The token budget with the highest geometric mean over the cases tried."""

    def mean_log(budget: str) -> float:
        speeds = trials[budget].values()
        return sum(map(math.log, speeds)) / len(speeds)

    return max(trials, key=mean_log)


def _start_vllm(setup: PeerSetup, cases: Sequence[Case]) -> Peer:
    python = ensure_environment(VLLM_NAME, VLLM_REQUIREMENTS, VLLM_REMOVED, setup.peers_home)
    settings = vllm_environment(setup.cores, kv_cache_gib=_VLLM_KV_CACHE_GIB)

    def start(budget: int) -> PeerProcess:
        command = [str(python), "-m", "benchmarks.peer_vllm"]
        command += ["--checkpoint", str(setup.checkpoint), "--dtype", setup.dtype]
        command += ["--max-num-batched-tokens", str(budget)]
        return _start(VLLM_NAME, command, settings, setup)

    tried = [case for case in cases if case.kind != "decode"]
    if len(setup.token_budgets) == 1 or not tried:
        return Peer(start(setup.token_budgets[0]), settings)
    return _start_fastest(start, setup.token_budgets, tried, settings)


def _start_fastest(
    start: Callable[[int], PeerProcess],
    budgets: Sequence[int],
    tried: Sequence[Case],
    settings: Mapping[str, str],
) -> Peer:
    """One process at a time: each holds gigabytes."""
    trials: dict[str, dict[str, float]] = {}
    for budget in budgets:
        process = start(budget)
        try:
            trials[str(budget)] = {
                case.name: percentile(
                    [process.measure(case).tokens_per_s for _ in range(_NUM_TRIALS)], 50.0
                )
                for case in tried
            }
            is_kept = budget == budgets[-1] and fastest_budget(trials) == str(budget)
        except BaseException:
            process.close()
            raise
        if is_kept:
            return Peer(process, settings, trials)
        process.close()
    return Peer(start(int(fastest_budget(trials))), settings, trials)


def _start(
    name: str, command: Sequence[str], settings: Mapping[str, str], setup: PeerSetup
) -> PeerProcess:
    print(f"starting {name}: {' '.join(command)}", file=sys.stderr)
    environment = child_environment(settings)
    return PeerProcess(name, command, environment, setup.log_folder / f"{name}.log")
