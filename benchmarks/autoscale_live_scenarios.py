"""What `benchmarks.autoscale_live` measures: a model, a load that triples twice, and who scales.

Data only. Must not know how a fleet is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from benchmarks.autoscale_live_load import RateSchedule, Span
from benchmarks.workload import Workload

Kind = Literal["predictive", "serve", "static"]

LEARN_S = 120.0
"""Quiet time before and after the burst that the product has seen."""
PACED_START_S = 14.0
"""Of the 20 s or so that a replica takes to be of use; the rest is the start of its processes,
several at a time on two cores."""
PACED_WAKE_S = 1.0
AFTERMATH_S = 20.0
"""Requests that come so long after a ramp count as the ramp's: a replica that is asked for at its
end takes so long."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The load: quiet, up within ``ramp_s``, on the height for a while, down; and once more."""

    base_rate_per_s: float
    peak_rate_per_s: float
    ramp_s: float = 30.0
    lead_in_s: float = 20.0
    """Quiet time before the first ramp."""
    height_s: float = 30.0
    descent_s: float = 20.0
    between_s: float = 30.0
    """Quiet time before the second ramp."""
    settle_s: float = 40.0
    """Quiet time before all that, for who learns nothing."""

    @property
    def ramp_begins_s(self) -> tuple[float, float]:
        first_s = self.lead_in_s
        return first_s, first_s + self._burst_s + self.between_s

    @property
    def ramps(self) -> tuple[Span, ...]:
        """With what follows from them, see ``AFTERMATH_S``."""
        return tuple(Span(at_s, at_s + self.ramp_s + AFTERMATH_S) for at_s in self.ramp_begins_s)

    @property
    def schedule(self) -> RateSchedule:
        return RateSchedule(
            (
                (0.0, self.base_rate_per_s),
                *(point for at_s in self.ramp_begins_s for point in self._burst(at_s)),
            )
        )

    def history(self, kind: Kind) -> RateSchedule:
        """What a fleet sees before, unmeasured. Serve's policy looks back half a minute at most and
        learns nothing; the product has seen such a burst once, and quiet times about it."""
        quiet = self.base_rate_per_s
        if kind != "predictive":
            return RateSchedule(((0.0, quiet), (self.settle_s, quiet)))
        end_s = LEARN_S + self._burst_s + LEARN_S
        return RateSchedule(((0.0, quiet), *self._burst(LEARN_S), (end_s, quiet)))

    @property
    def _burst_s(self) -> float:
        return self.ramp_s + self.height_s + self.descent_s

    def _burst(self, begin_s: float) -> tuple[tuple[float, float], ...]:
        top_s = begin_s + self.ramp_s
        return (
            (begin_s, self.base_rate_per_s),
            (top_s, self.peak_rate_per_s),
            (top_s + self.height_s, self.peak_rate_per_s),
            (begin_s + self._burst_s, self.base_rate_per_s),
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One model and its load."""

    name: str
    engine: Mapping[str, Any]
    base_replicas: int
    """What the quiet load takes, and what a fleet that grows begins with."""
    max_replicas: int
    peak_replicas: int
    """What the height takes: the static fleet."""
    shape: Shape
    workload: Workload
    ttft_target_s: float
    tpot_target_s: float
    start_s: float
    """About what a replica takes to start, as its user would say."""
    wake_s: float
    targets: tuple[float, ...]
    """Ongoing requests per replica that Serve's policy is to keep."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who decides on the number of replicas."""

    name: str
    kind: Kind
    autoscaling: Mapping[str, Any]
    """Of Serve's `autoscaling_config`, beside the bounds; of the product, its own of the model."""
    node_cache: Mapping[str, Any] | None = None
    """The model's `node_cache`."""


TUNED = MappingProxyType(
    {
        "metrics_interval_s": 1.0,
        "look_back_period_s": 5.0,
        "upscale_delay_s": 1.0,
        "downscale_delay_s": 30.0,
    }
)
"""Serve's policy at its quickest; its defaults are 10, 30, 30 and 600 s."""

PACED = Scenario(
    name="paced",
    # A prompt of some 330 tokens takes a step of .17 s, so that a replica is full at 5 requests/s
    # and quick at 3.3; then some 5 are under way.
    engine={
        "runner": "paced",
        "kv_cache_bytes": 512 * 2**20,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "max_step_stretch": None,
        "ttft_budget_s": 1.0,
        "paced": {
            "step_base_s": 0.04,
            "per_decode_s": 0.0005,
            "per_prefill_token_s": 0.0004,
            "start_s": PACED_START_S,
            "wake_s": PACED_WAKE_S,
        },
    },
    base_replicas=3,
    max_replicas=12,
    peak_replicas=9,
    shape=Shape(base_rate_per_s=10.0, peak_rate_per_s=30.0),
    workload=Workload(prompt_words=290, output_tokens=16, seed=0, ignore_eos=True),
    ttft_target_s=0.7,
    tpot_target_s=0.3,
    start_s=20.0,
    wake_s=1.5,
    targets=(2.0, 3.0, 4.0),
)

SMOLLM2 = Scenario(
    name="smollm2",
    engine={"num_threads": 1, "kv_cache_bytes": 2**28, "max_num_seqs": 8},
    base_replicas=1,
    max_replicas=3,
    peak_replicas=2,
    shape=Shape(
        base_rate_per_s=1.3,
        peak_rate_per_s=3.9,
        lead_in_s=10.0,
        height_s=15.0,
        descent_s=10.0,
        between_s=15.0,
        settle_s=20.0,
    ),
    workload=Workload(prompt_words=300, output_tokens=8, seed=0, ignore_eos=True),
    ttft_target_s=1.0,
    tpot_target_s=0.2,
    start_s=12.0,
    wake_s=1.0,
    targets=(0.5, 1.0, 2.0),
)

LADDER = replace(
    PACED,
    name="ladder",
    engine={
        **PACED.engine,
        "paced": {**PACED.engine["paced"], "staged_start_s": 0.0},
    },
)
"""Starts from the object store or from the node's memory; nobody sleeps. What is left of a start
from memory is that of its processes."""

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {scenario.name: scenario for scenario in (PACED, SMOLLM2, LADDER)}
)

OURS = "headwater"
COLD, STAGED = "cold", "staged"
STAGED_START_S = 6.0
"""About what a replica takes to start whose weights are in the node's memory."""
STATIC = "static_peak"
DEFAULT_DELAYS = "serve_default_delays"


def contestants(scenario: Scenario) -> tuple[Contestant, ...]:
    """Serve's policy at each target at its quickest, and once with the delays that it has. Of the
    ladder, the product alone: with weights in the node's memory and without."""
    if scenario is LADDER:
        return _rungs()
    serve = [
        Contestant(f"serve_{target:g}", "serve", {**TUNED, "target_ongoing_requests": target})
        for target in scenario.targets
    ]
    default = {"target_ongoing_requests": scenario.targets[0]}
    return (
        Contestant(OURS, "predictive", {}),
        *serve,
        Contestant(DEFAULT_DELAYS, "serve", default),
        Contestant(STATIC, "static", {}),
    )


def _rungs() -> tuple[Contestant, ...]:
    cache = {"host_bytes": 2**26}
    staged = {**cache, "weights": {"host_bytes": 2**30}}
    scaling = {"max_parked": 0}
    return (
        Contestant(COLD, "predictive", scaling, cache),
        Contestant(STAGED, "predictive", {**scaling, "staged_start_s": STAGED_START_S}, staged),
    )
