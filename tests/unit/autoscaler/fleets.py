"""Observations to plan by, and a small fleet that does what plans say."""

from autoscaler.config import AutoscalerConfig, CapacityConfig, ModelScalingConfig
from autoscaler.observation import (
    Demand,
    FleetObservation,
    ModelObservation,
    ReplicaObservation,
    ServeObservation,
)
from autoscaler.plan import ModelPlan, Plan
from autoscaler.policy import PlannerState, decide
from cache_tiers.rung import Rung
from engine.messages import LoadView

NOON_S = 1_700_000_000.0


def make_config(**changes: object) -> AutoscalerConfig:
    """One model of 10 requests/s per replica; ``changes`` to it."""
    values: dict[str, object] = {
        "name": "m",
        "capacity": CapacityConfig(requests_per_s=10.0),
        "start_s": 60.0,
        "wake_s": 3.0,
    }
    return AutoscalerConfig(models=(ModelScalingConfig.model_validate(values | changes),))


def make_demand(rate: float, period_s: float = 1.0, **changes: float) -> Demand:
    """Served as it comes: prompts of 1,000 tokens, half of them cached, answers of 200."""
    num = rate * period_s
    values = {
        "num_arrived": num,
        "num_prompt_tokens": 1000 * num,
        "num_uncached_tokens": 500 * num,
        "num_generated_tokens": 200 * num,
        "num_begun": num,
        "num_ended": num,
    }
    return Demand(period_s=period_s, **(values | changes))


def make_replica(
    engine_id: str, rung: Rung = Rung.SERVING, *, num_running: int = 0, **changes: object
) -> ReplicaObservation:
    """One that is heard."""
    values: dict[str, object] = {"load": LoadView(num_running=num_running)}
    return ReplicaObservation(engine_id, rung, **(values | changes))  # type: ignore[arg-type]


class ToyFleet:
    """Replicas of one model that start, sleep, wake and leave as the last plan says."""

    def __init__(
        self, num_replicas: int, *, start_s: float = 60.0, most: int = 100, least: int = 0
    ) -> None:
        self.now_s = 0.0
        self.local_s = NOON_S
        self.start_s = start_s
        self.target = num_replicas
        self.least, self.most = least, most
        self.rungs = {f"e{at:03}": Rung.SERVING for at in range(num_replicas)}
        self.starting: list[float] = []
        self.num_started = num_replicas
        self.plan: Plan | None = None
        self.state = PlannerState.new(epoch=1)

    def observe(self, demand: Demand | None, **changes: object) -> FleetObservation:
        """Everything is heard; ``changes`` to the model's observation."""
        values: dict[str, object] = {
            "replicas": tuple(make_replica(each, rung) for each, rung in self.rungs.items()),
            "serve": ServeObservation(self.target, len(self.rungs), self.least, self.most),
        }
        model = ModelObservation("m", demand, **(values | changes))  # type: ignore[arg-type]
        return FleetObservation(self.now_s, self.local_s, (model,))

    def tick(
        self,
        config: AutoscalerConfig,
        demand: Demand | None,
        *,
        passed_s: float = 1.0,
        **changes: object,
    ) -> ModelPlan:
        """Time passes, then the planner decides and the fleet does it."""
        self.now_s += passed_s
        self.local_s += passed_s
        for _ in [at for at in self.starting if at <= self.now_s]:
            self.rungs[f"e{self.num_started:03}"] = Rung.SERVING
            self.num_started += 1
        self.starting = [at for at in self.starting if at > self.now_s]
        self.plan = decide(self.observe(demand, **changes), self.state, config).plan
        plan = self.plan.models[0]
        if not plan.is_held:
            self.carry_out(plan)
        return plan

    def run(
        self,
        config: AutoscalerConfig,
        rate: float | tuple[float, ...] | None,
        time_s: int,
        *,
        every_s: int = 5,
    ) -> ModelPlan:
        """So many requests/s for so long, several rates one minute each in turn; the last plan."""
        rates = rate if isinstance(rate, tuple) else (rate,)
        for begun_s in range(0, time_s, every_s):
            now = rates[begun_s // 60 % len(rates)]
            demand = None if now is None else make_demand(now, period_s=every_s)
            plan = self.tick(config, demand, passed_s=every_s)
        return plan

    def carry_out(self, plan: ModelPlan) -> None:
        self.target = plan.num_replicas
        self.rungs |= {each: rung for each, rung in plan.rungs.items() if each in self.rungs}
        while len(self.rungs) + len(self.starting) < self.target:
            self.starting.append(self.now_s + self.start_s)
        while len(self.rungs) + len(self.starting) > self.target:
            if self.starting:
                self.starting.pop()
            else:
                del self.rungs[max(self.rungs, key=lambda each: (self.rungs[each] < 4, each))]
