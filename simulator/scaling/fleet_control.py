"""A scaling policy in charge of a whole simulated fleet. A ``FleetController``, and a
``ScalableFleet`` towards the scaler; must not know policies.
"""

from autoscaler.observation import ModelObservation
from simulator.fleet import SimulatedFleet
from simulator.outcome import RequestOutcome
from simulator.replica_spec import ReplicaSpec
from simulator.scaling.demand_meter import DemandMeter
from simulator.scaling.fleet_scaler import FleetScaler
from simulator.scaling.fleet_sight import OnTheWay, observe_fleet
from simulator.workload import SimulatedRequest


class ScaledFleet:
    """Of one simulation."""

    def __init__(
        self, scaler: FleetScaler, spec: ReplicaSpec, ttft_target_s: float, tpot_target_s: float
    ) -> None:
        self._scaler = scaler
        self._spec = spec
        self._meter = DemandMeter(ttft_target_s, tpot_target_s)
        self._fleet: SimulatedFleet | None = None
        """From the first tick on."""
        self._num_open = self._num_waiting = 0
        self._num_generated = 0
        """Tokens of answers that ended."""

    @property
    def tick_s(self) -> float:
        return self._scaler.setting.tick_s

    @property
    def num_serving(self) -> int:
        return len(self._there.replicas) - len(self._there.draining)

    @property
    def num_draining(self) -> int:
        return len(self._there.draining)

    @property
    def num_ongoing(self) -> int:
        return self._num_open

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def num_arrived(self) -> int:
        return self._meter.num_arrived

    def arrive(self, request: SimulatedRequest) -> None:
        self._meter.arrive(request.num_prompt_tokens)
        self._num_open += 1
        self._num_waiting += 1

    def begin(self, outcome: RequestOutcome) -> None:
        self._num_waiting -= 1
        num_uncached = outcome.num_prompt_tokens - outcome.num_cached_tokens
        self._meter.begin(num_uncached, outcome.ttft_s)

    def end(self, outcome: RequestOutcome) -> None:
        self._num_open -= 1
        self._num_generated += outcome.num_answer_tokens
        self._meter.end(outcome.num_answer_tokens, outcome.end_s - outcome.first_token_s)

    def tick(self, fleet: SimulatedFleet) -> None:
        now_s = fleet.clock.now_s
        if self._fleet is None:
            self._fleet = fleet
            self._scaler.begin(now_s)
            return
        self._scaler.tick(self, now_s)
        self._meter.turn(self._num_generated)

    def join(self) -> None:
        self._there.join()

    def drain_one(self) -> None:
        serving = (
            replica
            for engine_id, replica in self._there.replicas.items()
            if engine_id not in self._there.draining
        )
        leaves = min(serving, key=lambda replica: replica.num_open)
        self._there.drain(leaves.engine_id)

    def observe(self, on_the_way: OnTheWay) -> ModelObservation:
        there = self._there
        views = [(name, replica.load_view()) for name, replica in there.replicas.items()]
        return observe_fleet(
            self._meter.demand(self.tick_s, self._num_generated),
            [each for each in views if each[0] not in there.draining],
            [each for each in views if each[0] in there.draining],
            on_the_way,
            self._scaler.setting,
            max_num_seqs=self._spec.config.max_num_seqs,
        )

    @property
    def _there(self) -> SimulatedFleet:
        assert self._fleet is not None, "a fleet ticks before its controller acts"
        return self._fleet
