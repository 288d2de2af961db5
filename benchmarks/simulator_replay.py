"""The same requests through a real engine, in real time, and through a simulated one.

What the simulator is told of step times comes from other requests: those of a replay before, with
other prompts, lengths and arrivals. Must not know what is done with the figures.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchmarks.simulator_serving import ReplayFigures, TimedRequest, as_workload, serve
from cache_tiers.block_image import ImageLayout
from deployments.offline_engine import create_engine
from deployments.offline_requests import OfflineRequests
from engine.config import EngineConfig
from engine.kv_memory import ReplicaRunner
from engine.performance_profile import StepCost, StepSample
from engine.runner import LoadedRunner
from engine.step import SampledToken, StepPlan, StepResult
from engine.step_cost_fit import fit_step_cost
from engine.step_time import StepWork, measure_work
from engine.warm_up import warm_up
from simulator.fleet import FleetSpec, simulate
from simulator.performance import LinearModel
from simulator.replica_spec import ReplicaSpec

_WARM_UP_LIMIT_S = 3.0
_MAX_SAMPLES = 600


class TimedRunner:
    """A runner that notes what each plan computes."""

    def __init__(self, runner: ReplicaRunner) -> None:
        self._runner = runner
        self.work = StepWork()
        """Of the last plan."""

    def execute(self, plan: StepPlan) -> StepResult:
        self.work = measure_work(plan.scheduled)
        return self._runner.execute(plan)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self._runner.take_sampled(sampled)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        self._runner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        self._runner.detach_arena()

    def free_kv(self) -> None:
        self._runner.free_kv()

    def allocate_kv(self) -> None:
        self._runner.allocate_kv()

    def close(self) -> None:
        self._runner.close()


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """What is asked."""

    num_requests: int
    mean_prompt_tokens: int
    mean_answer_tokens: int
    num_shared_tokens: int
    """Of one system prompt before all of them."""
    seed: int

    def draw(
        self, requests: OfflineRequests, vocab_size: int, requests_per_s: float
    ) -> list[TimedRequest]:
        """Exponential lengths, random arrivals."""
        draw = random.Random(self.seed)
        shared = draw.choices(range(vocab_size), k=self.num_shared_tokens)
        now_s = 0.0
        drawn = []
        for number in range(self.num_requests):
            now_s += draw.expovariate(requests_per_s)
            own = 1 + round(draw.expovariate(1 / self.mean_prompt_tokens))
            prompt = shared + draw.choices(range(vocab_size), k=own)
            num_answer = 2 + round(draw.expovariate(1 / self.mean_answer_tokens))
            drawn.append(TimedRequest(requests.make(f"r{number}", prompt, num_answer), now_s))
        return drawn


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, done and predicted."""

    real: ReplayFigures
    simulated: ReplayFigures
    requests_per_s: float
    cost_error: float
    """Of the step times that the simulator was told, mean and relative, over the steps that they
    were learned from.
    """


class _Fitted(NamedTuple):
    cost: StepCost
    error: float


class EngineReplay:
    """Owner of one real engine."""

    def __init__(self, loaded: LoadedRunner, config: EngineConfig) -> None:
        self._config = config
        self._runner = TimedRunner(loaded.runner)
        self._num_kv_tokens = loaded.num_blocks * config.block_size_tokens
        self._vocab_size = loaded.vocab_size
        self._requests = OfflineRequests(config.block_size_tokens)
        self._samples: list[StepSample] = []
        self._engine = create_engine(replace(loaded, runner=self._runner), config)
        warm_up(
            self._engine,
            config,
            max_len=self._engine.max_request_tokens,
            vocab_size=loaded.vocab_size,
            limit_s=_WARM_UP_LIMIT_S,
        )

    def run(self, task: ReplayTask, load: float) -> Replay:
        """``load``: the share of the requests that the engine answers when they come at once."""
        requests_per_s = load * self._capacity(task)
        self._serve(replace(task, seed=task.seed + 1), requests_per_s)
        cost, error = self._fit()
        real = self._serve(task, requests_per_s)
        replica = ReplicaSpec(LinearModel(cost), self._num_kv_tokens, config=self._config)
        workload = as_workload(self._draw(task, requests_per_s), self._config.block_size_tokens)
        simulated = ReplayFigures.of_outcome(simulate(workload, FleetSpec(1, replica)))
        return Replay(real, simulated, requests_per_s, error)

    def close(self) -> None:
        self._engine.close()

    def _draw(self, task: ReplayTask, requests_per_s: float) -> list[TimedRequest]:
        return task.draw(self._requests, self._vocab_size, requests_per_s)

    def _capacity(self, task: ReplayTask) -> float:
        """Requests per second of a few that come all at once."""
        few = replace(task, num_requests=max(8, task.num_requests // 8))
        at_once = [replace(request, due_s=0.0) for request in self._draw(few, 1.0)]
        started_s = time.perf_counter()
        serve(self._engine, at_once, self._note)
        return len(at_once) / (time.perf_counter() - started_s)

    def _serve(self, task: ReplayTask, requests_per_s: float) -> ReplayFigures:
        """With nothing cached or noted before."""
        self._engine.forget()
        self._samples.clear()
        served = serve(self._engine, self._draw(task, requests_per_s), self._note)
        return ReplayFigures.of_served(served)

    def _fit(self) -> _Fitted:
        """To the steps that were noted."""
        samples = self._samples[:: -(-len(self._samples) // _MAX_SAMPLES)]
        fit = fit_step_cost(samples)
        # So that sums agree: a fit of relative errors favours short steps.
        factor = sum(s.time_s for s in samples) / sum(fit.cost.predict(s.work) for s in samples)
        coefficients = [getattr(fit.cost, name) for name in fit.cost.__struct_fields__]
        return _Fitted(StepCost(*(factor * value for value in coefficients)), fit.error)

    def _note(self, time_s: float) -> None:
        work = self._runner.work
        self._samples.append(
            StepSample(
                work.num_prefill_tokens,
                work.num_decodes,
                work.num_context_tokens,
                work.num_attended_tokens,
                time_s,
            )
        )
