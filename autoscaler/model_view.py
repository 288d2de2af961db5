"""What the planner has made of one model's observations so far. Decides nothing; reads no clock."""

import math
from dataclasses import dataclass

from autoscaler.capacity import CapacityModel
from autoscaler.config import ModelScalingConfig
from autoscaler.correction import Correction, ServedLoad
from autoscaler.ladder import NO_WARM_NODES, WarmNodes
from autoscaler.leads import Leads, Starts, Wakes
from autoscaler.observation import (
    Demand,
    ModelObservation,
    ReplicaObservation,
    ServeObservation,
    StartingReplica,
)
from autoscaler.plan import PromotionLead
from autoscaler.window import Standing, Window
from cache_tiers.rung import Rung

_DEMAND_GAP_S = 5.0
"""Unknown for longer: blind."""
_SERVE_GAP_S = 10.0
_MIX_S = 600.0
_RECENT_S = 30.0
_IDLE_S = 600.0
"""Without a request for so long, and three starts: nothing is expected."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One model as it is seen now."""

    now_s: float
    passed_s: float
    """Since the one before."""
    load: float | None
    """In replicas; None while unknown."""
    backlog_replica_s: float
    num_requests: float
    """That came since the last one or wait."""
    serve: ServeObservation | None
    """What was said last, however long ago."""
    replicas: tuple[ReplicaObservation, ...]
    num_ready: int
    """That serve, and that the router counts."""
    num_asleep: int
    is_idle: bool
    starting: tuple[StartingReplica, ...] | None
    blindness: str | None
    """Why sizes hold; None: everything is known."""
    faults: tuple[str, ...]
    warm: WarmNodes = NO_WARM_NODES
    """Where the next replicas could begin."""
    lead_warm: WarmNodes = NO_WARM_NODES
    """Where they do: none, if they are placed elsewhere."""
    num_nodes: int | None = None
    """As in ``ModelObservation``."""
    num_nodes_failed: int = 0
    """That can't hold the weights."""

    @property
    def num_there(self) -> int:
        """Replicas that stay, whatever they do."""
        return sum(not each.is_draining for each in self.replicas)


class ModelView:
    """Owner of the history, the capacity model and the measured times of one model."""

    def __init__(self, history_s: float) -> None:
        self.window = Window(history_s)
        self.capacity = CapacityModel()
        self.correction = Correction()
        self.leads = Leads()
        self.starts = Starts()
        self.wakes = Wakes()
        self._seen_s: float | None = None
        self._demand_s = self._serve_s = self._replicas_s = -math.inf
        self._busy_s: float | None = None
        self._serve: ServeObservation | None = None
        self._told_wake_s = 0.0

    def update(
        self,
        now_s: float,
        observation: ModelObservation,
        config: ModelScalingConfig,
        faults: tuple[str, ...],
    ) -> Sight:
        """``observation`` is clean; ``now_s`` never goes back."""
        passed_s = 0.0 if self._seen_s is None else now_s - self._seen_s
        self._seen_s = now_s
        demand = observation.demand
        if demand is not None:
            self._demand_s = now_s
        if observation.serve is not None:
            self._serve, self._serve_s = observation.serve, now_s
        staying = [each for each in observation.replicas if not each.is_draining]
        ready = [each for each in staying if _serves(each)]
        asleep = [each for each in staying if each.rung is Rung.PARKED and not each.is_moving]
        if self._serve is None or self._serve.num_running == 0 or _is_any_heard(staying):
            self._replicas_s = now_s
        self._told_wake_s = max([each.wake_s for each in staying], default=0) or self._told_wake_s
        self.window.record(now_s, demand, self._standing(ready, asleep))
        totals = self.window.totals(_MIX_S)
        self.capacity.update(now_s, passed_s, config, ready, totals, demand)
        load = None if demand is None else self._load(demand.num_arrived / demand.period_s)
        num_waiting = float(sum(each.load.num_waiting for each in ready if each.load is not None))
        if demand is not None and load is not None:
            num_waiting += demand.num_waiting
            self._correct(passed_s, len(ready), num_waiting)
        warm = WarmNodes(observation.num_nodes_staged or 0, observation.num_nodes_on_disk or 0)
        sight = Sight(
            now_s=now_s,
            passed_s=passed_s,
            load=load,
            backlog_replica_s=self._backlog(demand, ready, config),
            num_requests=0.0 if demand is None else demand.num_arrived + demand.num_waiting,
            serve=self._serve,
            replicas=observation.replicas,
            num_ready=len(ready),
            num_asleep=len(asleep),
            is_idle=self._is_idle(now_s, demand, num_waiting, self.start_lead_s(Rung.COLD, config)),
            starting=observation.starting,
            blindness=self._blindness(now_s, observation),
            faults=faults,
            num_nodes=observation.num_nodes,
            num_nodes_failed=observation.num_nodes_failed or 0,
            warm=warm,
            lead_warm=NO_WARM_NODES if self.starts.are_colder else warm,
        )
        self.wakes.update(now_s, observation.replicas, self.leads)
        return sight

    def start_lead_s(self, rung: Rung, config: ModelScalingConfig) -> float:
        """From the decision to start a replica until it serves, where it begins on ``rung``."""
        lead_s = self.leads.lead_s(Rung.COLD, config.start_s)
        if rung >= Rung.ON_DISK:
            lead_s = self.leads.lead_s(Rung.ON_DISK, config.on_disk_start_s or lead_s)
        if rung >= Rung.STAGED:
            lead_s = self.leads.lead_s(Rung.STAGED, config.staged_start_s or lead_s)
        return lead_s

    def wake_lead_s(self, config: ModelScalingConfig) -> float:
        """From the decision to wake one."""
        return self.leads.lead_s(Rung.PARKED, self._told_wake_s or config.wake_s)

    def promotions(self, config: ModelScalingConfig) -> tuple[PromotionLead, ...]:
        """Of each rung below SERVING, COLD first."""
        return tuple(
            PromotionLead(
                rung,
                self.wake_lead_s(config)
                if rung is Rung.PARKED
                else self.start_lead_s(rung, config),
                self.leads.measured(rung),
            )
            for rung in (Rung.COLD, Rung.ON_DISK, Rung.STAGED, Rung.PARKED)
        )

    def corrected_rate(self, num_replicas: int) -> float | None:
        """Requests/s that each of so many replicas serves; None while unknown."""
        rate = self.capacity.rate_of(num_replicas)
        return None if rate is None else rate * self.correction.factor

    def _load(self, rate: float) -> float | None:
        return self.capacity.load_of(rate / self.correction.factor)

    def _standing(
        self, ready: list[ReplicaObservation], asleep: list[ReplicaObservation]
    ) -> Standing:
        loads = [each.load for each in ready if each.load is not None]
        num_blocks = sum(load.num_blocks for load in loads)
        num_free = sum(load.num_free_blocks for load in loads)
        kv_use = 1 - num_free / num_blocks if num_blocks else None
        return Standing(kv_use, len(ready), len(asleep), len(self.starts.under_way))

    def _correct(self, passed_s: float, num_ready: int, num_waiting: float) -> None:
        rate = self.corrected_rate(num_ready)
        recent = self.window.totals(_RECENT_S)
        # Of one second's load a part is chance: what it goes beyond is no proof of strength.
        load = self._load(recent.num_arrived / max(recent.num_known_s, 1.0))
        if rate is not None and load is not None:
            self.correction.update(
                passed_s, ServedLoad(load, num_ready, num_waiting, rate * num_ready, recent)
            )

    def _backlog(
        self, demand: Demand | None, ready: list[ReplicaObservation], config: ModelScalingConfig
    ) -> float:
        """Without what always waits: the requests that came within a TTFT target."""
        loads = [each.load for each in ready if each.load is not None]
        num = float(sum(load.num_waiting for load in loads))
        num_tokens = float(sum(load.num_waiting_tokens for load in loads))
        if demand is not None:
            num += demand.num_waiting
            num_tokens += demand.num_waiting_tokens
            usual = demand.num_arrived / demand.period_s * config.ttft_target_s
            left = max(0.0, num - usual)
            num, num_tokens = left, num_tokens * (left / num if num else 0.0)
        factor = self.correction.factor
        return self.capacity.backlog_replica_s(num, num_tokens, len(ready)) / factor

    def _is_idle(
        self, now_s: float, demand: Demand | None, num_waiting: float, start_lead_s: float
    ) -> bool:
        is_busy = demand is None or demand.num_arrived > 0 or num_waiting > 0
        if is_busy or self._busy_s is None:
            self._busy_s = now_s
        return now_s - self._busy_s >= max(_IDLE_S, 3 * start_lead_s)

    def _blindness(self, now_s: float, observation: ModelObservation) -> str | None:
        if now_s - self._serve_s > _SERVE_GAP_S:
            return "Serve has not said how many replicas it runs" + _since(now_s, self._serve_s)
        if now_s - self._demand_s > _DEMAND_GAP_S:
            return "how much came is unknown" + _since(now_s, self._demand_s)
        if now_s - self._replicas_s > _DEMAND_GAP_S:
            num = self._serve.num_running if self._serve is not None else 0
            return f"Serve runs {num} replicas and none is heard" + _since(now_s, self._replicas_s)
        demand = observation.demand
        if demand is not None and demand.num_arrived > 0 and not self.capacity.is_known:
            return (
                "what a replica takes is unknown: its engines have not told their step times; "
                "or set capacity.requests_per_s"
            )
        return None


def _serves(replica: ReplicaObservation) -> bool:
    is_up = replica.rung is Rung.SERVING and not replica.is_moving
    return is_up and replica.is_seeded and replica.load is not None


def _is_any_heard(replicas: list[ReplicaObservation]) -> bool:
    return any(each.load is not None or each.rung is not Rung.SERVING for each in replicas)


def _since(now_s: float, since_s: float) -> str:
    return f" for {now_s - since_s:.0f} s" if math.isfinite(since_s) else ""
