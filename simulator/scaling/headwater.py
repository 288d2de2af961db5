"""Our own autoscaler, as in production: ``autoscaler.policy.decide``, shown what a replay has.

Where there are only numbers, a replica takes what the setting says and who waits has no engine.
"""

from datetime import UTC, datetime

from autoscaler.config import AutoscalerConfig, CapacityConfig, ModelScalingConfig
from autoscaler.observation import Demand, FleetObservation, ModelObservation
from autoscaler.plan import ModelPlan
from autoscaler.policy import PlannerState, decide
from engine.messages import LoadView
from simulator.scaling.fleet_sight import MODEL, OnTheWay, observe_fleet
from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

_BEGIN_S = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
"""Of the wall clock; a Monday, so that weeks of a trace begin with one."""
_SHORTEST_S = 0.001


class Headwater:
    """A ``ScalingPolicy``."""

    def __init__(self, setting: ScalingSetting) -> None:
        self._setting = setting
        self._state = PlannerState.new(1)
        self._config: AutoscalerConfig | None = None
        self._asked_s: list[float] = []
        """Of numbers: when each replica that is pending was asked for."""
        self.plan: ModelPlan | None = None
        """The last one."""

    def size(self, view: ScalingView) -> Wanted:
        has_engines = view.observe is not None
        if self._config is None:
            self._config = _config(self._setting, knows_rate=not has_engines)
        observation = self._of_numbers(view) if view.observe is None else view.observe()
        # The tick that is seen is over.
        now_s = view.now_s if has_engines else view.now_s + self._setting.tick_s
        seen = FleetObservation(now_s, _BEGIN_S + now_s, (observation,))
        decision = decide(seen, self._state, self._config)
        self._state = decision.state
        self.plan = plan = decision.plan.models[0]
        if plan.is_held:
            return Wanted(view.ready + view.pending, view.parked)
        self._remember(now_s, view, plan)
        return Wanted(plan.num_serving, plan.num_parked)

    def _of_numbers(self, view: ScalingView) -> ModelObservation:
        num_served = max(0.0, view.num_arrived - view.num_queued)
        demand = Demand(
            period_s=self._setting.tick_s,
            num_arrived=view.num_arrived,
            num_prompt_tokens=0.0,
            num_uncached_tokens=0.0,
            num_generated_tokens=0.0,
            num_begun=num_served,
            num_ended=num_served,
            num_waiting=view.num_queued,
        )
        num_starting = min(view.pending, len(self._asked_s))
        self._asked_s = self._asked_s[len(self._asked_s) - num_starting :]
        return observe_fleet(
            demand,
            ((f"e{number}", LoadView()) for number in range(view.ready)),
            (),
            OnTheWay(tuple(self._asked_s), view.pending - num_starting, view.parked),
            self._setting,
            max_num_seqs=0,
        )

    def _remember(self, now_s: float, view: ScalingView, plan: ModelPlan) -> None:
        """Who is asked for last is given up first; who sleeps wakes before another starts."""
        change = plan.num_serving - view.ready - view.pending
        if change < 0:
            del self._asked_s[max(0, len(self._asked_s) + change) :]
        else:
            self._asked_s += [now_s] * max(0, change - view.parked)


def _config(setting: ScalingSetting, *, knows_rate: bool) -> AutoscalerConfig:
    sleeps = setting.parked_cost < 1 and setting.wake_s < setting.lead_s
    capacity = CapacityConfig(requests_per_s=setting.replica_rps if knows_rate else None)
    model = ModelScalingConfig(
        name=MODEL,
        min_replicas=1,
        max_replicas=setting.max_replicas,
        max_parked=None if sleeps else 0,
        parked_cost=setting.parked_cost,
        start_s=max(_SHORTEST_S, setting.lead_s),
        wake_s=max(_SHORTEST_S, setting.wake_s),
        capacity=capacity,
    )
    if setting.late_cost is not None:
        model = model.model_copy(update={"late_cost": setting.late_cost})
    return AutoscalerConfig(models=(model,))
