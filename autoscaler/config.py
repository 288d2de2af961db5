"""The autoscaler's section of the configuration: frozen, unknown keys are errors, units in names.

All of it may change at run time.
"""

from datetime import time
from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, model_validator

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class ScheduleConfig(BaseModel):
    """At least so many replicas serve at these hours, whatever is forecast."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min_replicas: int = Field(ge=0)
    """Ready when the time begins: they are started before it, by as long as a start takes."""
    begin: time
    """`"08:00"`, on the wall clock of ``timezone``."""
    end: time
    """Earlier than ``begin``, or equal: on the next day."""
    days: tuple[Weekday, ...] = WEEKDAYS
    """On which it begins."""

    @model_validator(mode="after")
    def _check_zone(self) -> Self:
        for name, at in (("begin", self.begin), ("end", self.end)):
            if at.tzinfo is not None:
                raise ValueError(
                    f"{name} is {at.isoformat()}: leave its offset out, and name the zone as the "
                    "autoscaler's timezone"
                )
        return self


class StepCostConfig(BaseModel):
    """How long steps of a replica take, as ``headwater profile`` measures it.

    A step takes ``base_s``, ``prefill_token_s`` for each prompt token that it computes,
    ``attended_s`` for each position that such a token attends to, ``decode_s`` for each sequence
    that decodes and ``context_token_s`` for each position that it attends to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base_s: float = Field(gt=0)
    """Of every step."""
    prefill_token_s: float = Field(gt=0)
    """Of each prompt token."""
    attended_s: float = Field(default=0.0, ge=0)
    """Of each prompt token and position."""
    decode_s: float = Field(default=0.0, ge=0)
    """Of each sequence that decodes."""
    context_token_s: float = Field(default=0.0, ge=0)
    """Of each such sequence and position."""
    step_tokens: int = Field(default=8192, ge=1)
    """Most prompt tokens in one step."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Most sequences that decode at once."""


class CapacityConfig(BaseModel):
    """What one replica takes. What isn't said is learned from the engines' own step times."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    requests_per_s: float | None = Field(default=None, gt=0)
    """Within both targets, as a load test found it. Goes before ``step_cost``."""
    step_cost: StepCostConfig | None = None
    """From a profile; goes before what engines report."""


class ModelScalingConfig(BaseModel):
    """How one model grows and shrinks."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1)
    """As in the gateway's ``models``."""
    min_replicas: int | None = Field(default=None, ge=0)
    """Serving at any time; as the model's own ``args`` have it if absent."""
    max_replicas: int | None = Field(default=None, ge=1)
    """Never more, asleep ones included; as the model's own ``args`` have it if absent."""
    max_parked: int | None = Field(default=None, ge=0)
    """Most replicas asleep beside those that serve; what ``max_replicas`` leaves if absent. 0: no
    replica ever sleeps."""
    ttft_target_s: float = Field(default=0.7, gt=0)
    """Time to the first token that 99 of 100 requests shall see."""
    tpot_target_s: float = Field(default=0.04, gt=0)
    """Time per output token, likewise."""
    late_cost: float = Field(default=50.0, gt=0)
    """What a second of a replica that is missing costs, in seconds of one that stands idle: the
    larger, the more spare replicas. 50 asks for enough in 98 of 100 cases."""
    parked_cost: float = Field(default=0.25, ge=0, le=1)
    """What a second asleep costs, in seconds of one that serves: near 1 where a replica asleep
    keeps its accelerators, less where several models share them."""
    staged_cost: float = Field(default=0.02, ge=0, le=1)
    """The same of a node that holds the weights in CPU memory and runs no replica."""
    on_disk_cost: float = Field(default=0.002, ge=0, le=1)
    """The same of one that holds them on its NVMe only."""
    devices_per_replica: int = Field(default=1, ge=0, le=10_000)
    """Accelerators, counted against ``device_budget``; with tensor parallelism its size."""
    start_s: float = Field(default=120.0, gt=0, le=86400)
    """From the decision until a new replica serves on a node that holds nothing of the model, until
    a few starts were measured."""
    on_disk_start_s: float | None = Field(default=None, gt=0, le=86400)
    """The same where the node's disk holds the weights; absent: `start_s`."""
    staged_start_s: float | None = Field(default=None, gt=0, le=86400)
    """The same where its CPU memory holds them; absent: as `on_disk_start_s`."""
    wake_s: float = Field(default=5.0, gt=0, le=86400)
    """The same of waking one that sleeps."""
    capacity: CapacityConfig = CapacityConfig()
    """What one replica takes; learned from its steps if absent."""
    schedules: tuple[ScheduleConfig, ...] = ()
    """The largest of those that hold counts."""
    num_replicas: int | None = Field(default=None, ge=0)
    """Overrides everything but ``max_replicas`` and the budget: so many serve, until it is
    removed."""
    dry_run: bool = False
    """Plan and log, change nothing."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        low, high = self.min_replicas, self.max_replicas
        if low is not None and high is not None and low > high:
            raise ValueError(
                f"min_replicas is {low}, more than max_replicas, {high}: raise the one or lower "
                "the other"
            )
        return self


class AutoscalerConfig(BaseModel):
    """`user_config` of the deployment Autoscaler in the gateway's application."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    models: tuple[ModelScalingConfig, ...] = ()
    """Those that aren't listed keep the size that their application asks for."""
    device_budget: int | None = Field(default=None, ge=0)
    """Accelerators that all models take together at most. Replicas asleep make room first; then
    those serve that are missed most. 0 takes nothing away and lets nothing grow. Where nodes are
    shared, only who is awake counts."""
    devices_per_node: int | None = Field(default=None, ge=1)
    """Accelerators of each node, where replicas of several models share them: those awake on a node
    take no more together, and sleepers wake as others sleep. Such replicas ask for a custom
    resource in `resources`, and for no GPU. Absent: each replica has its own."""
    timezone: str = "UTC"
    """Of schedules, and of the time of day in forecasts."""
    request_nodes: bool = True
    """Ask Ray's cluster autoscaler for the nodes of a plan as soon as it is made."""
    node_start_s: float = Field(default=180.0, gt=0, le=86400)
    """From asking for a node until it can take a model's weights, until a few were measured."""
    history_h: float = Field(default=6.0, gt=0, le=48)
    """Hours of observations kept at full resolution."""
    dry_run: bool = False
    """Of all models."""

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        num = self.devices_per_node
        for model in self.models:
            if num is not None and model.devices_per_replica > num:
                raise ValueError(
                    f"models: {model.name} takes {model.devices_per_replica} accelerators, and a "
                    f"node has {num}: correct devices_per_replica or devices_per_node"
                )
        return self

    @model_validator(mode="after")
    def _check_names_and_zone(self) -> Self:
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"models: listed twice: {twice}")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(
                f"timezone is {self.timezone!r}, which this machine doesn't know; take a name of "
                "the IANA database such as Europe/Berlin"
            ) from error
        return self
