"""`decide`: from what is seen of the fleet to one plan for all of it. No I/O, reads no clock.

Raises for no observation, and says the same for the same ones in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from autoscaler.budget import Request, hold_growth, share_out
from autoscaler.config import AutoscalerConfig, ModelScalingConfig
from autoscaler.leads import are_times, usual_s
from autoscaler.model_planner import ModelPlanner, Proposal
from autoscaler.node_sharing import NodeSharing
from autoscaler.observation import FleetObservation, ModelObservation
from autoscaler.plan import Cause, ModelPlan, Plan, PromotionLead
from autoscaler.plan_clock import PlanClock
from autoscaler.readings import clean
from cache_tiers.rung import Rung

_UNLISTED_DEVICES = 1

KnownLeads = Mapping[str, Sequence[PromotionLead]]
"""By model, of the planner before."""


class PlannerState:
    """All that is remembered from one decision to the next. Belongs to whoever calls `decide`;
    is changed by it, so that hours of history aren't copied each second."""

    def __init__(self, epoch: int, leads: KnownLeads) -> None:
        self.epoch = epoch
        """As in ``engine.rung_messages.RungOrder``: a later start has a larger one."""
        self.sequence = 0
        self.clock = PlanClock()
        self.planners: dict[str, ModelPlanner] = {}
        self.sharing = NodeSharing()
        self.leads = leads
        self.history_h = 0.0

    @classmethod
    def new(cls, epoch: int, leads: KnownLeads | None = None) -> "PlannerState":
        """Nothing is known, but what promotions took if somebody planned before: sizes hold, or
        grow, until enough was seen."""
        return cls(epoch, leads or {})


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer; ``state`` goes into the next question."""

    plan: Plan
    state: PlannerState


def decide(
    observation: FleetObservation, state: PlannerState, config: AutoscalerConfig
) -> Decision:
    """Plan for all models that ``config`` lists. Once a second, or at any other rhythm."""
    clock_fault = state.clock.advance(observation.now_s, observation.local_s)
    _keep_listed(state, config)
    seen = {each.model: each for each in observation.models}
    zone = ZoneInfo(config.timezone)
    proposals = [
        _propose(
            state,
            model,
            seen.get(model.name),
            zone,
            clock_fault,
            is_dry=config.dry_run or model.dry_run,
        )
        for model in config.models
    ]
    node_times_s = observation.node_times_s if are_times(observation.node_times_s) else ()
    node_lead_s = usual_s(node_times_s, config.node_start_s)
    _apply_budget(proposals, config, _num_unlisted_devices(config, observation))
    shared = _share_nodes(proposals, observation, state, config)
    plans = [
        state.planners[each.config.name].settle(each, shared.get(each.config.name), node_lead_s)
        for each in proposals
    ]
    state.sequence += 1
    plan = Plan(
        made_s=observation.now_s,
        made_local_s=state.clock.local_s,
        epoch=state.epoch,
        sequence=state.sequence,
        models=tuple(plans),
        node_times_s=node_times_s,
        num_devices=sum(
            _num_planned_devices(proposal, each, config)
            for proposal, each in zip(proposals, plans, strict=True)
        ),
        is_dry_run=config.dry_run,
    )
    return Decision(plan, state)


def _keep_listed(state: PlannerState, config: AutoscalerConfig) -> None:
    if config.history_h != state.history_h:
        state.history_h = config.history_h
        for planner in state.planners.values():
            planner.view.window.resize(3600 * config.history_h)
    names = {each.name for each in config.models}
    for gone in state.planners.keys() - names:
        del state.planners[gone]
    for name in names - state.planners.keys():
        planner = state.planners[name] = ModelPlanner(3600 * config.history_h)
        for lead in state.leads.get(name, ()):
            for time_s in lead.times_s:
                planner.view.leads.record(lead.rung, time_s)


def _propose(
    state: PlannerState,
    config: ModelScalingConfig,
    observation: ModelObservation | None,
    zone: ZoneInfo,
    clock_fault: str | None,
    *,
    is_dry: bool,
) -> Proposal:
    clock = state.clock
    faults = () if clock_fault is None else (clock_fault,)
    if observation is None:
        observation = ModelObservation(config.name, demand=None)
        faults = (*faults, "no gateway knows this model")
    cleaned = clean(observation)
    planner = state.planners[config.name]
    sight = planner.view.update(
        clock.now_s,
        clock.shifted(cleaned.observation),
        config,
        (*faults, *cleaned.faults),
    )
    return planner.propose(sight, clock.local_s, config, zone, is_dry=is_dry)


def _apply_budget(
    proposals: Sequence[Proposal], config: AutoscalerConfig, num_unlisted: int
) -> None:
    """Those that are held keep what they have; the others share the rest. Where nodes are shared,
    who sleeps takes nothing, and whoever may not serve sleeps."""
    if config.device_budget is None:
        return
    acting = [each for each in proposals if config.dry_run or not each.is_held]
    is_shared = config.devices_per_node is not None and config.device_budget > 0
    requests = [
        Request(
            each.config,
            each.minimum,
            each.draft.num_serving,
            0 if is_shared else each.draft.num_parked,
            each.current.num_serving if is_shared else each.current.num_total,
        )
        for each in acting
    ]
    if config.device_budget == 0:
        grants = hold_growth(requests)
    else:
        held = sum(
            _num_devices(each, each.current.num_serving, each.current.num_total, config)
            for each in proposals
            if each not in acting
        )
        grants = share_out(requests, max(0, config.device_budget - num_unlisted - held))
    for proposal, grant in zip(acting, grants, strict=True):
        total = grant.num_serving + grant.num_parked
        if is_shared:
            total = proposal.draft.num_total
        proposal.draft.replace(Cause.BUDGET, grant.num_serving, total)


def _share_nodes(
    proposals: Sequence[Proposal],
    observation: FleetObservation,
    state: PlannerState,
    config: AutoscalerConfig,
) -> dict[str, dict[str, Rung]]:
    """Orders by model, where nodes are shared."""
    if config.devices_per_node is None:
        return {}
    sharers = [state.planners[each.config.name].sharer(each) for each in proposals]
    names = {each.config.name for each in proposals}
    others = [
        replica
        for model in observation.models
        if model.model not in names
        for replica in model.replicas
    ]
    rungs = state.sharing.assign(state.clock.now_s, sharers, others, config.devices_per_node)
    return {sharer.config.name: each for sharer, each in zip(sharers, rungs, strict=True)}


def _num_unlisted_devices(config: AutoscalerConfig, observation: FleetObservation) -> int:
    names = {each.name for each in config.models}
    return sum(
        _UNLISTED_DEVICES * each.serve.target_num_replicas
        for each in observation.models
        if each.serve is not None and each.model not in names
    )


def _num_planned_devices(proposal: Proposal, plan: ModelPlan, config: AutoscalerConfig) -> int:
    current = proposal.current
    if plan.is_held:
        return _num_devices(proposal, current.num_serving, current.num_total, config)
    return _num_devices(proposal, plan.num_serving, plan.num_replicas, config)


def _num_devices(
    proposal: Proposal, num_serving: int, num_total: int, config: AutoscalerConfig
) -> int:
    num = num_total if config.devices_per_node is None else num_serving
    return num * proposal.config.devices_per_replica
