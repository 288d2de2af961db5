"""Sizes of one model, and which of its replicas sleep. The budget is decided elsewhere."""

import math
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from autoscaler.config import ModelScalingConfig
from autoscaler.draft import Draft
from autoscaler.forecast.forecaster import DemandForecaster
from autoscaler.ladder import assign_rungs, may_sleep, serving_ratio, total_ratio
from autoscaler.lower_rungs import LowerRungs, NodePlan
from autoscaler.model_view import ModelView, Sight
from autoscaler.plan import Cause, ModelPlan, PromotionLead
from autoscaler.reason import explain_nodes, explain_sizes
from autoscaler.schedules import scheduled_min
from autoscaler.sharer import Sharer
from autoscaler.sizing import START_PACE, WAKE_PACE, Sizer, Sizing
from autoscaler.step_limit import StepLimit
from autoscaler.urgency import Urgency
from cache_tiers.rung import Rung

_ADOPTED_S = 15.0
"""Serve's target follows a plan within so long; after that, what Serve says is so."""
_LEARNED_S = 300.0
"""Nothing shrinks before demand was known for so long, or for one start, and nothing grows that
isn't used."""
_USED = 0.95
"""Of the replicas that serve."""
_MOST_REPLICAS = 10_000
"""Whatever Serve or the configuration say: bounds the work of a decision."""
_TICK_S = 1.0
_WAKE_STEP_S = 5.0
"""Of the forecasts that waking rests on."""


@dataclass(frozen=True, slots=True)
class Current:
    """What one model has, or was asked for."""

    num_serving: int
    num_total: int


@dataclass(slots=True)
class Proposal:
    """One model's plan before the budget."""

    config: ModelScalingConfig
    sight: Sight
    draft: Draft
    current: Current
    minimum: int
    is_held: bool


class ModelPlanner:
    """Owner of one model's forecasts and of what was planned last."""

    def __init__(self, history_s: float) -> None:
        self.view = ModelView(history_s)
        # Who wakes within seconds looks at seconds.
        self._wake_forecaster = DemandForecaster(_WAKE_STEP_S)
        self._start_forecaster = DemandForecaster()
        self._serving = Sizer(self._wake_forecaster, WAKE_PACE)
        self._total = Sizer(self._start_forecaster, START_PACE)
        self._urgency = Urgency()
        self._limit = StepLimit()
        self._planned: Current | None = None
        """As carried out last."""
        self._planned_s = -math.inf
        self._orders: dict[str, Rung] = {}
        self._lower = LowerRungs(self._start_forecaster)
        self._num_nodes = 0
        """Asked for last."""

    def propose(
        self,
        sight: Sight,
        local_s: float,
        config: ModelScalingConfig,
        zone: ZoneInfo,
        *,
        is_dry: bool,
    ) -> Proposal:
        """``sight``: of ``view.update`` at this time. ``is_dry``: nothing is carried out."""
        self._wake_forecaster.use_level(serving_ratio(config))
        self._start_forecaster.use_level(total_ratio(config))
        for forecaster in (self._wake_forecaster, self._start_forecaster):
            forecaster.observe(sight.now_s, local_s, sight.load)
        current = self._current(sight, is_dry=is_dry)
        scheduled = self._scheduled(sight, current, config, local_s, zone)
        serve = sight.serve
        minimum = config.min_replicas
        if minimum is None:
            minimum = serve.min_replicas if serve is not None else 0
        most = min(_most(config.max_replicas), _most(serve.max_replicas if serve else None))
        is_blind = sight.blindness is not None
        if config.num_replicas is not None:
            draft = Draft(config.num_replicas, config.num_replicas, [Cause.OVERRIDE])
            minimum = config.num_replicas
        elif is_blind:
            draft = Draft(current.num_serving, current.num_total, [Cause.HOLD_BLIND])
            draft.notes.append(sight.blindness or "")
        else:
            draft = self._size(sight, current, config)
        if config.num_replicas is None:
            draft.raise_to_floor(Cause.MINIMUM, minimum)
            draft.raise_to_floor(Cause.SCHEDULE, scheduled)
            minimum = max(minimum, scheduled)
        if minimum > most:
            draft.notes.append(f"{minimum} are asked for and {most} allowed")
        draft.cap_at(Cause.MAXIMUM, most)
        is_same = (draft.num_serving, draft.num_total) == (current.num_serving, current.num_total)
        is_blind = is_blind and config.num_replicas is None
        is_unknown = sight.serve is None or (is_blind and is_same)
        return Proposal(
            config=config,
            sight=sight,
            draft=draft,
            current=current,
            minimum=min(minimum, most),
            is_held=is_dry or is_unknown,
        )

    def sharer(self, proposal: Proposal) -> Sharer:
        """What it wants of nodes that it shares; ``proposal.draft``: with the budget in it."""
        return Sharer(
            proposal.config,
            proposal.draft.num_serving,
            proposal.minimum,
            proposal.sight.num_requests > 0,
            self.view.wake_lead_s(proposal.config),
            proposal.sight.replicas,
            self._orders,
            proposal.is_held,
        )

    def settle(
        self, proposal: Proposal, shared: dict[str, Rung] | None, node_lead_s: float
    ) -> ModelPlan:
        """``proposal.draft``: with the budget in it; ``shared``: its orders, where nodes are."""
        config, sight, draft = proposal.config, proposal.sight, proposal.draft
        now_s = sight.now_s
        rungs: dict[str, Rung] = {}
        if not proposal.is_held:
            sizes = Current(draft.num_serving, draft.num_total)
            if self._planned is None or self._planned.num_total != sizes.num_total:
                self._planned_s = now_s
            self._planned = sizes
            if shared is None:
                rungs = assign_rungs(sight.replicas, draft.num_serving, self._orders)
            else:
                rungs = shared
                _note_room(draft, rungs)
            self._orders = rungs
            self.view.wakes.order(now_s, sight.replicas, rungs)
        asked = proposal.current.num_total if proposal.is_held else draft.num_total
        starts = self.view.starts
        starts.update(now_s, sight.replicas, asked, sight.starting, self.view.leads, sight.warm)
        nodes = self._nodes(proposal, node_lead_s)
        leads = self.view.promotions(config)
        start_rung = sight.lead_warm.start_rung(draft.num_total - proposal.current.num_total)
        return ModelPlan(
            model=config.name,
            num_serving=draft.num_serving,
            num_parked=draft.num_parked,
            num_staged=nodes.num_staged,
            num_on_disk=nodes.num_on_disk,
            rungs=rungs,
            next_ready_s=self._next_ready_s(now_s, config, leads),
            causes=tuple(draft.causes),
            reason=explain_sizes(
                draft,
                sight,
                self.view,
                proposal.current.num_total,
                explain_nodes(nodes, sight, draft.num_total),
            ),
            is_held=proposal.is_held,
            num_wanted=draft.num_wanted,
            forecasts=draft.forecasts,
            num_nodes=nodes.num_nodes,
            node_lead_s=node_lead_s,
            start_rung=start_rung,
            leads=leads,
        )

    def _current(self, sight: Sight, *, is_dry: bool) -> Current:
        planned, serve = self._planned, sight.serve
        if planned is not None and not is_dry and sight.now_s - self._planned_s <= _ADOPTED_S:
            return planned
        num_total = serve.target_num_replicas if serve is not None else sight.num_there
        num_total = min(num_total, _MOST_REPLICAS)
        num_asleep = sight.num_asleep
        if planned is not None and not is_dry:
            num_asleep = planned.num_total - planned.num_serving
        return Current(max(0, num_total - num_asleep), num_total)

    def _size(self, sight: Sight, current: Current, config: ModelScalingConfig) -> Draft:
        """By forecast, what waits, and what is known so far."""
        total = self._size_total(sight, current, config)
        draft = Draft(total.num_replicas, total.num_replicas, list(total.causes))
        draft.num_wanted = total.num_wanted
        draft.forecasts = () if total.forecast is None else (total.forecast,)
        if may_sleep(config):
            self._let_sleep(draft, sight, current, config)
        if self.view.correction.is_lowering and Cause.LATENCY not in draft.causes:
            draft.causes.append(Cause.LATENCY)
        if sight.is_idle:
            self._size_idle(draft, sight, config)
        else:
            draft.raise_to(Cause.BACKLOG, serving=1 if sight.num_requests > 0 else 0)
            if draft.num_serving == 0 and current.num_serving > 0:
                draft.raise_to(Cause.HOLD_HYSTERESIS, serving=1)
        draft.raise_to(Cause.STEP_LIMIT, total=self._limit.least(current.num_total))
        draft.cap_at(Cause.STEP_LIMIT, self._limit.most(sight.now_s, current.num_total))
        known_s = self.view.window.known_s
        needed_s = self._needed_s(config)
        if known_s < needed_s:
            before = (draft.num_serving, draft.num_total)
            if self._is_enough(sight, current):
                draft.replace(Cause.HOLD_HYSTERESIS, current.num_serving, current.num_total)
            else:
                draft.raise_to(
                    Cause.HOLD_HYSTERESIS, serving=current.num_serving, total=current.num_total
                )
            if before != (draft.num_serving, draft.num_total):
                draft.notes.append(f"{known_s:.0f} s of {needed_s:.0f} s seen before it may change")
        if config.max_parked is not None or not may_sleep(config):
            draft.cap_parked(config.max_parked or 0)
        return draft

    def _size_total(self, sight: Sight, current: Current, config: ModelScalingConfig) -> Sizing:
        """At the lead of the coldest rung on which one of the replicas begins that it asks for."""
        rung = sight.lead_warm.start_rung(1)
        while True:
            sizing = self._total.size(
                sight.now_s,
                lead_s=self.view.start_lead_s(rung, config),
                current=current.num_total,
                ready=sight.num_ready + sight.num_asleep,
                backlog=sight.backlog_replica_s,
            )
            needed = sight.lead_warm.start_rung(sizing.num_replicas - current.num_total)
            if needed >= rung:
                return sizing
            rung = needed

    def _let_sleep(
        self, draft: Draft, sight: Sight, current: Current, config: ModelScalingConfig
    ) -> None:
        serving = self._serving.size(
            sight.now_s,
            lead_s=self.view.wake_lead_s(config) + _TICK_S,
            current=current.num_serving,
            ready=sight.num_ready,
            backlog=sight.backlog_replica_s,
        )
        draft.num_serving = serving.num_replicas
        least = self._urgency.least_serving(sight, current.num_serving, config.ttft_target_s)
        draft.num_serving = max(draft.num_serving, min(draft.num_total, least))
        if serving.num_replicas > draft.num_total:
            draft.num_total = serving.num_replicas
            draft.causes = list(serving.causes)
        if serving.forecast is not None:
            draft.forecasts = (serving.forecast, *draft.forecasts)

    def _is_enough(self, sight: Sight, current: Current) -> bool:
        """Those that serve take what comes now; a forecaster that knows little asks for much."""
        last = self._start_forecaster.last
        is_short = last is not None and last > _USED * current.num_serving
        is_busy = sight.num_requests > 0 and current.num_serving == 0
        return not (is_short or is_busy or sight.backlog_replica_s > current.num_serving)

    def _size_idle(self, draft: Draft, sight: Sight, config: ModelScalingConfig) -> None:
        """The coldest rung from which the first request is still served within the target."""
        alone_s = self._alone_s()
        start_lead_s = self.view.start_lead_s(sight.lead_warm.start_rung(1), config)
        if start_lead_s + alone_s <= config.ttft_target_s:
            draft.replace(Cause.FORECAST, 0, 0)
        elif may_sleep(config) and (
            self.view.wake_lead_s(config) + alone_s <= config.ttft_target_s
        ):
            draft.replace(Cause.FORECAST, 0, 1)
        else:
            draft.replace(Cause.FORECAST, 1, 1)

    def _nodes(self, proposal: Proposal, node_lead_s: float) -> NodePlan:
        """With the weights in memory, and on disk, beside those of replicas; and all."""
        config, sight, draft = proposal.config, proposal.sight, proposal.draft
        lower, most = self._lower, _most(config.max_replicas)
        cold_lead_s = self.view.start_lead_s(Rung.COLD, config)
        lower.update(sight.now_s, config, cold_lead_s=cold_lead_s, node_lead_s=node_lead_s)
        num_staged = max(0, min(lower.num_staged, most) - draft.num_total)
        num_with = max(0, min(lower.num_with_weights, most) - draft.num_total)
        if proposal.is_held:
            num_nodes = proposal.current.num_total
            if sight.blindness is not None:
                num_nodes = max(num_nodes, self._num_nodes)
        else:
            is_free = config.num_replicas is None and Cause.BUDGET not in draft.causes
            # Nothing will start beside a size that an operator has set.
            num_nodes = draft.num_total + (num_staged if config.num_replicas is None else 0)
            is_known = self.view.window.known_s >= self._needed_s(config)
            if not is_known and sight.num_nodes is not None:
                # A forecaster that knows little asks for much: those that are there do.
                num_nodes = min(num_nodes, max(draft.num_total, sight.num_nodes))
            elif is_free and is_known and not sight.is_idle:
                num_nodes = max(num_nodes, min(lower.num_nodes, most))
            if sight.is_idle and draft.num_total == 0:
                first_s = node_lead_s + cold_lead_s + self._alone_s()
                num_nodes = 0 if first_s <= config.ttft_target_s else num_nodes
        self._num_nodes = num_nodes
        return NodePlan(num_staged, max(0, num_with - num_staged), num_nodes)

    def _alone_s(self) -> float:
        """To the first token of a request that comes alone, but for a start."""
        return self.view.capacity.ttft_alone_s() + _TICK_S

    def _needed_s(self, config: ModelScalingConfig) -> float:
        """Demand has to be known for so long before anything but what is used grows."""
        return max(_LEARNED_S, self.view.start_lead_s(Rung.COLD, config))

    def _scheduled(
        self,
        sight: Sight,
        current: Current,
        config: ModelScalingConfig,
        local_s: float,
        zone: ZoneInfo,
    ) -> int:
        """Replicas that schedules ask for now, or that have to start now for one to come."""
        lead_s = self.view.start_lead_s(Rung.COLD, config)
        num = scheduled_min(config.schedules, local_s, zone, lead_s)
        rung = sight.lead_warm.start_rung(num - current.num_total)
        if num <= current.num_total or rung is Rung.COLD:
            return num
        return scheduled_min(config.schedules, local_s, zone, self.view.start_lead_s(rung, config))

    def _next_ready_s(
        self, now_s: float, config: ModelScalingConfig, leads: tuple[PromotionLead, ...]
    ) -> float | None:
        view = self.view
        etas_s = view.starts.etas_s(now_s, {each.rung: each.lead_s for each in leads})
        etas_s += view.wakes.etas_s(now_s, view.wake_lead_s(config))
        return min(etas_s, default=None)


def _note_room(draft: Draft, rungs: dict[str, Rung]) -> None:
    num_awake = sum(each is Rung.SERVING for each in rungs.values())
    num_left = min(draft.num_serving, len(rungs)) - num_awake
    if num_left > 0:
        draft.notes.append(f"{num_left} wait until others on their nodes sleep")


def _most(bound: int | None) -> int:
    return _MOST_REPLICAS if bound is None else min(bound, _MOST_REPLICAS)
