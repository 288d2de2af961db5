"""A fleet on the virtual clock: gateways that route, replicas that serve, and what changes
meanwhile.

``simulate`` is the whole of it: a workload and a specification in, an outcome out, the same every
time.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from engine.cache_mirror import CacheMirror
from engine.messages import KEY_STRIDE
from simulator.clock import VirtualClock
from simulator.errors import FleetSpecError
from simulator.gateway import FleetGateway
from simulator.outcome import Outcome, RequestOutcome
from simulator.policies.registry import create_policy
from simulator.replica import Report, SimulatedReplica
from simulator.replica_spec import BlockUnits, ReplicaSpec
from simulator.told_record import ToldRecord
from simulator.workload import SimulatedRequest, Workload, followers

_TOLD_KEY_TOKENS = 128
"""Routers are told of a key of so many tokens, or of each of a workload's larger blocks."""

_ALLOCATIONS_PER_COLLECTION = 200_000


class FleetChange(NamedTuple):
    """A replica more, or one less."""

    at_s: float
    engine_id: str | None = None
    """Who leaves; None: one joins, empty."""
    is_lost: bool = False
    """It leaves at once, and what it had begun starts over elsewhere; else it drains."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A fleet and its routing."""

    num_replicas: int
    """Called ``e0``, ``e1``, …; those that join later go on from there."""
    replica: ReplicaSpec
    policy: str = "headwater"
    """A name of ``simulator.policies.registry``."""
    num_gateways: int = 1
    """Requests go to them in turn, sessions too."""
    stale_s: float = 0.0
    """A gateway hears of load and caches so much later; of its own requests at once."""
    changes: Sequence[FleetChange] = ()
    told_blocks: int = 31_250
    """Per replica, that a router without cache events remembers, as llm-d's does."""

    def __post_init__(self) -> None:
        if self.num_replicas < 1 or self.num_gateways < 1:
            raise FleetSpecError("a fleet needs at least one replica and one gateway")
        if not 0 <= self.stale_s < float("inf"):
            raise FleetSpecError(f"stale_s is {self.stale_s}; it must be 0 or more seconds")


class FleetController(Protocol):
    """Watches a fleet and changes its size while it serves."""

    @property
    def tick_s(self) -> float: ...

    def arrive(self, request: SimulatedRequest) -> None: ...

    def begin(self, outcome: RequestOutcome) -> None:
        """Its first token is there."""
        ...

    def end(self, outcome: RequestOutcome) -> None: ...

    def tick(self, fleet: "SimulatedFleet") -> None:
        """Called every ``tick_s`` until all is answered; may ``join`` and ``drain``."""
        ...


def simulate(
    workload: Workload, spec: FleetSpec, controller: FleetController | None = None
) -> Outcome:
    """Serve all requests to their end.

    Raises ``FleetSpecError``, and ``SimulationError`` if no request was answered.
    """
    fleet = SimulatedFleet(workload, spec, controller)
    fleet.run()
    return fleet.outcome()


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Nearly all that a simulation makes is freed without them; each looks at all of it."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def block_units(block_size_tokens: int) -> BlockUnits:
    """Raises ``FleetSpecError``."""
    key_stride = max(1, _TOLD_KEY_TOKENS // block_size_tokens)
    told, rest = divmod(block_size_tokens * key_stride, KEY_STRIDE)
    if rest or told == 0:
        raise FleetSpecError(
            f"blocks of {block_size_tokens} tokens can't be told to routers, which count every "
            f"{KEY_STRIDE}th; take 16, 32, 64, … tokens"
        )
    return BlockUnits(block_size_tokens, key_stride, told)


class SimulatedFleet:
    """Owner of gateways and replicas of one simulation."""

    def __init__(
        self, workload: Workload, spec: FleetSpec, controller: FleetController | None = None
    ) -> None:
        self._workload = workload
        self._controller = controller
        self._spec = spec
        self._units = block_units(workload.block_size_tokens)
        if spec.replica.num_kv_tokens < workload.block_size_tokens:
            raise FleetSpecError("num_kv_tokens is less than one block of the workload")
        try:
            policy = create_policy(spec.policy)
        except ValueError as error:
            raise FleetSpecError(str(error)) from error
        self.clock = VirtualClock()
        self.replicas: dict[str, SimulatedReplica] = {}
        """That are there, draining ones included."""
        self.draining: set[str] = set()
        self._mirrors: dict[str, CacheMirror] = {}
        self._gateways = [
            FleetGateway(
                number,
                spec.num_gateways,
                policy.choose,
                self._units,
                stale_s=spec.stale_s,
                told=(
                    ToldRecord(spec.told_blocks, workload.block_size_tokens)
                    if policy.is_told
                    else None
                ),
                ask_snapshot=self._send_snapshot,
            )
            for number in range(spec.num_gateways)
        ]
        self._followers = followers(workload)
        self._outcomes: dict[str, RequestOutcome] = {}
        """Of requests that have not ended."""
        self._gateway_of: dict[str, FleetGateway] = {}
        self._ended: list[RequestOutcome] = []
        self._num_sent = 0
        self._num_refused = 0
        self._num_restarted = 0
        self._replica_s = 0.0
        self._num_preemptions = 0
        self._loaded: Counter[str] = Counter()
        self._engine_ids: list[str] = []
        for _ in range(spec.num_replicas):
            self.join()

    def run(self) -> None:
        follows = {request.request_id for request in self._followers.values()}
        for request in self._workload.requests:
            if request.request_id not in follows:
                self.clock.at(request.arrival_s, partial(self._arrive, request))
        for change in self._spec.changes:
            self.clock.at(change.at_s, partial(self._change, change))
        if self._controller is not None:
            first_s = min(request.arrival_s for request in self._workload.requests)
            self.clock.at(first_s, partial(self._tick, self._controller))
        with _rare_collections():
            self.clock.run()

    def outcome(self) -> Outcome:
        """After ``run``."""
        assert not self._outcomes, "a request was neither answered nor refused"
        for engine_id in list(self.replicas):
            self._leave(engine_id)
        return Outcome(
            self._ended,
            num_refused=self._num_refused,
            replica_s=self._replica_s,
            num_preemptions=self._num_preemptions,
            engine_ids=self._engine_ids,
            counts={"restarted": self._num_restarted, **self._loaded},
        )

    def _tick(self, controller: FleetController) -> None:
        controller.tick(self)
        if self._outcomes or self._num_sent < len(self._workload):
            self.clock.at(self.clock.now_s + controller.tick_s, partial(self._tick, controller))

    def _arrive(self, request: SimulatedRequest) -> None:
        gateway = self._gateways[self._num_sent % len(self._gateways)]
        self._num_sent += 1
        outcome = RequestOutcome(
            request.request_id,
            "",
            self.clock.now_s,
            0.0,
            0.0,
            request.num_prompt_tokens,
            request.num_answer_tokens,
        )
        self._outcomes[request.request_id] = outcome
        self._gateway_of[request.request_id] = gateway
        if self._controller is not None:
            self._controller.arrive(request)
        self._send(request, outcome)

    def _send(self, request: SimulatedRequest, outcome: RequestOutcome) -> None:
        gateway = self._gateway_of[request.request_id]
        route = gateway.route(self.clock.now_s, request)
        if route is None:
            self._num_refused += 1
            self._end(request.request_id)
            return
        outcome.engine_id, source = route
        peer = None if source.peer_id is None else self.replicas.get(source.peer_id)
        self.replicas[outcome.engine_id].submit(self._num_sent, request, peer)

    def _hear(self, report: Report) -> None:
        """A replica's run ended."""
        for events in report.events:
            self._mirrors[report.engine_id].apply(events)
        for sequence in report.begun:
            request_id = sequence.request.request_id
            outcome = self._outcomes[request_id]
            outcome.first_token_s = report.made_s
            outcome.num_cached_tokens = sequence.cached_tokens or 0
            replica = self.replicas[report.engine_id]
            outcome.num_loaded_tokens = replica.num_loaded_tokens_of(request_id)
            if self._controller is not None:
                self._controller.begin(outcome)
        for gateway in self._gateways:
            gateway.hear_answers(report)
        if self._spec.stale_s:
            self.clock.at(report.made_s + self._spec.stale_s, partial(self._tell, report))
        else:
            self._tell(report)
        for sequence in report.ended:
            outcome = self._outcomes[sequence.request.request_id]
            outcome.end_s = report.made_s
            self._ended.append(outcome)
            if self._controller is not None:
                self._controller.end(outcome)
            self._end(outcome.request_id)
        # Those that have just ended still count as open there.
        num_open = self.replicas[report.engine_id].num_open - len(report.ended)
        if report.engine_id in self.draining and num_open == 0:
            self._leave(report.engine_id)

    def _tell(self, report: Report) -> None:
        for gateway in self._gateways:
            gateway.hear(report)

    def _end(self, request_id: str) -> None:
        """Answered or refused; who follows it in its session thinks now."""
        del self._outcomes[request_id], self._gateway_of[request_id]
        follower = self._followers.get(request_id)
        if follower is not None:
            assert follower.think_s is not None
            when_s = max(follower.arrival_s, self.clock.now_s + follower.think_s)
            self.clock.at(when_s, partial(self._arrive, follower))

    def _change(self, change: FleetChange) -> None:
        if change.engine_id is None:
            self.join()
        elif change.engine_id not in self.replicas:
            raise FleetSpecError(f"{change.engine_id} leaves at {change.at_s} s, but is not there")
        elif change.is_lost:
            self._lose(change.engine_id)
        else:
            self.drain(change.engine_id)

    def drain(self, engine_id: str) -> None:
        """It gets no more requests, and leaves when it has answered all."""
        for gateway in self._gateways:
            gateway.drain(engine_id)
        self.draining.add(engine_id)
        if self.replicas[engine_id].is_idle:
            self._leave(engine_id)

    def join(self) -> None:
        """One more serves, without a cache."""
        engine_id = f"e{len(self._engine_ids)}"
        self._engine_ids.append(engine_id)
        replica = SimulatedReplica(
            engine_id, self._spec.replica, self._units, self.clock, self._hear
        )
        self.replicas[engine_id] = replica
        self._mirrors[engine_id] = CacheMirror()
        report = replica.first_report()
        for gateway in self._gateways:
            gateway.add(replica, report.load)

    def _lose(self, engine_id: str) -> None:
        lost = self.replicas[engine_id].lose()
        self._leave(engine_id)
        for request in lost:
            self._num_restarted += 1
            outcome = self._outcomes[request.request_id]
            outcome.num_restarts += 1
            self._send(request, outcome)

    def _leave(self, engine_id: str) -> None:
        replica = self.replicas.pop(engine_id)
        self.draining.discard(engine_id)
        for gateway in self._gateways:
            gateway.remove(engine_id)
        self._replica_s += self.clock.now_s - replica.began_s
        self._num_preemptions += replica.num_preemptions
        for kind, num_tokens in replica.num_loaded_tokens.items():
            self._loaded[f"{kind}_tokens"] += num_tokens

    def _send_snapshot(self, gateway: FleetGateway, engine_id: str) -> None:
        """All that the replica has told so far; what it tells later comes later."""
        if engine_id not in self.replicas:
            return
        parts = self._mirrors[engine_id].snapshot()
        when_s = self.clock.now_s + self._spec.stale_s
        self.clock.at(when_s, partial(gateway.hear_snapshot, engine_id, parts))
