"""The same requests through a real engine, in real time, and through a simulated one whose step
times were fitted to the steps that the real one took.

Must not know what is done with the figures.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from deployments.offline_engine import check_output
from deployments.offline_requests import OfflineRequests
from engine.config import EngineConfig
from engine.engine import Engine
from engine.messages import EngineRequest
from engine.performance_profile import StepSample
from engine.runner import LoadedRunner
from engine.step import ModelRunner, SampledToken, StepPlan, StepResult
from engine.step_cost_fit import fit_step_cost
from engine.step_time import StepWork, measure_work
from engine.warm_up import warm_up
from simulator.fleet import FleetSpec, simulate
from simulator.performance import LinearModel
from simulator.replica_spec import ReplicaSpec
from simulator.workload import SimulatedRequest, Workload

_WARM_UP_LIMIT_S = 3.0
_MAX_SAMPLES = 600


class TimedRunner:
    """A runner that notes what each plan computes."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.work = StepWork()
        """Of the last plan."""

    def execute(self, plan: StepPlan) -> StepResult:
        self.work = measure_work(plan.scheduled)
        return self._runner.execute(plan)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self._runner.take_sampled(sampled)

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
    load: float
    """Of the requests that the engine answers when they come all at once."""
    seed: int


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """Means over all requests."""

    ttft_s: float
    tpot_s: float
    hit_rate: float


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, done and predicted."""

    real: ReplayFigures
    simulated: ReplayFigures
    requests_per_s: float
    num_steps: int
    cost_error: float
    """Of the fitted step times, mean and relative."""


class EngineReplay:
    """Owner of one real engine."""

    def __init__(self, loaded: LoadedRunner, config: EngineConfig) -> None:
        self._config = config
        self._runner = TimedRunner(loaded.runner)
        self._num_kv_tokens = loaded.num_blocks * config.block_size_tokens
        self._vocab_size = loaded.vocab_size
        self._requests = OfflineRequests(config.block_size_tokens)
        self._samples: list[StepSample] = []
        self._engine = Engine(
            config,
            geometry=loaded.geometry,
            num_blocks=loaded.num_blocks,
            max_model_len=loaded.max_model_len,
            vocab_size=loaded.vocab_size,
            runner=self._runner,
        )
        warm_up(
            self._engine,
            config,
            max_len=self._engine.max_request_tokens,
            vocab_size=loaded.vocab_size,
            limit_s=_WARM_UP_LIMIT_S,
        )

    def run(self, task: ReplayTask) -> Replay:
        asks = self._draw(task)
        capacity = self._requests_per_s(asks[: max(8, task.num_requests // 8)])
        requests_per_s = task.load * capacity
        draw = random.Random(task.seed)
        arrivals: list[float] = []
        now_s = 0.0
        for _ in asks:
            now_s += draw.expovariate(requests_per_s)
            arrivals.append(now_s)
        self._engine.forget()
        self._samples.clear()
        real = self._serve(asks, arrivals)
        # Once more what was seen, so that sums agree: a fit of relative errors favours short steps.
        samples = self._samples[:: -(-len(self._samples) // _MAX_SAMPLES)]
        fit = fit_step_cost(samples)
        factor = sum(s.time_s for s in samples) / sum(fit.cost.predict(s.work) for s in samples)
        cost = type(fit.cost)(
            *(factor * getattr(fit.cost, name) for name in fit.cost.__struct_fields__)
        )
        replica = ReplicaSpec(LinearModel(cost), self._num_kv_tokens, config=self._config)
        workload = _workload(asks, arrivals, self._config.block_size_tokens)
        outcome = simulate(workload, FleetSpec(1, replica))
        assert outcome.tpot_s is not None
        return Replay(
            real,
            ReplayFigures(outcome.ttft_s.mean, outcome.tpot_s.mean, outcome.hit_rate),
            requests_per_s,
            len(self._samples),
            fit.error,
        )

    def close(self) -> None:
        self._engine.close()

    def _draw(self, task: ReplayTask) -> list[EngineRequest]:
        draw = random.Random(task.seed)
        shared = draw.choices(range(self._vocab_size), k=task.num_shared_tokens)
        asks = []
        for number in range(task.num_requests):
            own = 1 + round(draw.expovariate(1 / task.mean_prompt_tokens))
            prompt = shared + draw.choices(range(self._vocab_size), k=own)
            num_answer = 2 + round(draw.expovariate(1 / task.mean_answer_tokens))
            asks.append(self._requests.make(f"r{number}", prompt, num_answer))
        return asks

    def _requests_per_s(self, asks: Sequence[EngineRequest]) -> float:
        """When all come at once."""
        started_s = time.perf_counter()
        self._serve(asks, [0.0] * len(asks))
        return len(asks) / (time.perf_counter() - started_s)

    def _serve(self, asks: Sequence[EngineRequest], arrivals: Sequence[float]) -> ReplayFigures:
        """Each when its time has come; the engine's thread does nothing else."""
        begun_s: dict[str, float] = {}
        ttfts_s: list[float] = []
        tpots_s: list[float] = []
        num_cached = 0
        due_of = dict(zip((ask.request_id for ask in asks), arrivals, strict=True))
        coming = list(reversed(asks))
        started_s = time.perf_counter()
        while coming or self._engine.has_work:
            now_s = time.perf_counter() - started_s
            while coming and due_of[coming[-1].request_id] <= now_s:
                self._engine.add(coming.pop())
            if not self._engine.has_work:
                time.sleep(max(0.0, due_of[coming[-1].request_id] - now_s))
                continue
            output = self._engine.step()
            check_output(output)
            now_s = time.perf_counter() - started_s
            if output.record is not None:
                self._note(output.record.step_time_s)
            for delta in output.deltas:
                name = delta.request_id
                if name not in begun_s:
                    assert delta.usage is not None
                    begun_s[name] = now_s
                    ttfts_s.append(now_s - due_of[name])
                    num_cached += delta.usage.cached_tokens
                if delta.finish_reason is not None:
                    assert delta.usage is not None
                    num_later = max(1, delta.usage.completion_tokens - 1)
                    tpots_s.append((now_s - begun_s[name]) / num_later)
        num_tokens = sum(len(ask.token_ids) for ask in asks)
        return ReplayFigures(fmean(ttfts_s), fmean(tpots_s), num_cached / num_tokens)

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


def _workload(
    asks: Sequence[EngineRequest], arrivals: Sequence[float], block_size: int
) -> Workload:
    return Workload(
        "replay",
        block_size,
        tuple(
            SimulatedRequest(
                ask.request_id,
                arrival_s,
                len(ask.token_ids),
                ask.sampling.max_tokens,
                ask.block_keys,
            )
            for ask, arrival_s in zip(asks, arrivals, strict=True)
        ),
    )
