"""What the planner decides, as it is logged, published and carried out. Frozen, msgpack-able."""

from enum import StrEnum

import msgspec

from cache_tiers.rung import Rung


class Cause(StrEnum):
    """Why a model has the size that it has."""

    FORECAST = "forecast"
    BACKLOG = "backlog"
    """What waits now asks for more than what is expected."""
    LATENCY = "latency"
    """Targets are missed at less load than the capacity model thinks a replica takes."""
    SCHEDULE = "schedule"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    BUDGET = "budget"
    OVERRIDE = "override"
    """An operator says so."""
    HOLD_BLIND = "hold_blind"
    """Demand, replicas or Serve are unknown."""
    HOLD_HYSTERESIS = "hold_hysteresis"
    """Another size would be right by so little, or so shortly after a change, that it stays."""
    STEP_LIMIT = "step_limit"


class ExpertWeight(msgspec.Struct, frozen=True, array_like=True):
    """How much one expert has to say in a forecast."""

    name: str
    weight: float
    value: float
    """What it says alone, in the forecast's unit."""


class ForecastRecord(msgspec.Struct, frozen=True):
    """One forecast that a decision rests on."""

    horizon_s: float
    quantile: float
    value: float
    """Replicas' worth of load that will not be exceeded with that probability."""
    last_value: float
    """The load now."""
    calibration: float
    """Added to the experts' mixture so that the quantile is kept."""
    coverage: float | None
    """Share of recent forecasts that held; None while too few are over."""
    experts: tuple[ExpertWeight, ...] = ()


class PromotionLead(msgspec.Struct, frozen=True, array_like=True):
    """How long replicas take to serve that begin on one rung."""

    rung: Rung
    lead_s: float
    """What nine of ten take at most."""
    times_s: tuple[float, ...]
    """What the last ones took, oldest first; where they are few, the configuration counts, too."""


class ModelPlan(msgspec.Struct, frozen=True):
    """One model."""

    model: str
    num_serving: int
    """Where nodes are shared, some may have to wait until others sleep: see ``rungs``."""
    num_parked: int
    num_staged: int
    """Nodes that hold the weights in CPU memory beside those of replicas, counted as often as
    replicas fit."""
    num_on_disk: int
    """The same of those that hold them on their disk only."""
    rungs: dict[str, Rung]
    """Engine id to PARKED or SERVING, for those that are there."""
    next_ready_s: float | None
    """From ``Plan.made_s``, until another replica serves; None: none is on its way."""
    causes: tuple[Cause, ...]
    """The deciding one first."""
    reason: str
    """One line for a human."""
    is_held: bool = False
    """Nothing of it is carried out: blind, or a dry run."""
    num_wanted: float = 0.0
    """Replicas before rounding, bounds and hysteresis."""
    forecasts: tuple[ForecastRecord, ...] = ()
    num_nodes: int = 0
    """Replicas' worth of nodes to have: those of replicas and of ``num_staged``, or more that are
    asked for ahead, since nodes take longer to come. Only those of replicas where an operator has
    set how many serve."""
    node_lead_s: float = 0.0
    """From asking for one until it could take the weights."""
    start_rung: Rung = Rung.COLD
    """On which the next replicas begin: the coldest of those that are needed next."""
    leads: tuple[PromotionLead, ...] = ()
    """COLD first; a planner that starts again goes on from them."""

    @property
    def num_replicas(self) -> int:
        """Serve's target."""
        return self.num_serving + self.num_parked


class Plan(msgspec.Struct, frozen=True):
    """All models at once: applied whole, or not at all."""

    made_s: float
    """The observation's ``now_s``."""
    made_local_s: float
    """Its ``local_s``."""
    epoch: int
    """As in ``engine.rung_messages.RungOrder``."""
    sequence: int
    models: tuple[ModelPlan, ...] = ()
    node_times_s: tuple[float, ...] = ()
    """What the last nodes took, oldest first: a planner that starts again goes on from them."""
    num_devices: int = 0
    """Accelerators that all replicas of the plan take; where nodes are shared, those awake."""
    is_dry_run: bool = False
