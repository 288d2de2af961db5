"""A day's fleet: every request of it, on replicas of ``day_replica``, behind a router that takes
the cheapest one by the production router's cost, sized by a scaling policy each second.

What it leaves out of ``simulator.fleet``: gateways, whose views are exact here, the index and
events, admission by memory, preemption, tiers. A session's prefix stays where it was computed until
so much has been written after it that it must have been evicted. Validated against the whole
simulator by ``benchmarks.autoscaling_windows``.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.routing.cost import ANSWER_SECOND, MEAN_ANSWER_S
from app.routing.policy import TIE_S
from autoscaler.observation import ModelObservation
from engine.performance_profile import StepCost
from simulator.scaling.day_replica import DayReplica, Ended
from simulator.scaling.day_workload import BLOCK_TOKENS, DayWorkload
from simulator.scaling.demand_meter import DemandMeter
from simulator.scaling.fleet_scaler import FleetScaler
from simulator.scaling.fleet_sight import OnTheWay, observe_fleet

_ANSWER_GAIN = 0.02
"""Of the mean of answers' times: about the last fifty count."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DaySpec:
    """One kind of replica."""

    cost: StepCost
    num_kv_tokens: int
    max_seqs: int = 256
    max_step_tokens: int = 2048
    ttft_target_s: float = 0.7
    tpot_target_s: float = 0.04


class DayOutcome(NamedTuple):
    """By request, in the order of their arrival."""

    ttft_s: Times
    tpot_s: Times
    """NaN for answers of one token."""
    hit_rate: float
    """Of prompt tokens."""


@dataclass(slots=True, eq=False)
class _Held:
    """The prompt of a session that one replica computed last."""

    first_turn: int
    """The oldest turn in it."""
    num_tokens: int
    """In whole blocks."""
    mark: int | None = None
    """What the replica had written when the answer ended; None before: it is in use."""


_NOTHING: Mapping[int, _Held] = MappingProxyType({})


class DayFleet:
    """A ``ScalableFleet``. Owner of its replicas and of what became of requests."""

    def __init__(
        self,
        workload: DayWorkload,
        spec: DaySpec,
        scaler: FleetScaler,
        num_replicas: int,
        *,
        scored_from_s: float = 0.0,
    ) -> None:
        """Costs and changes count from ``scored_from_s`` on."""
        self._scored_from_s = scored_from_s
        self._workload = workload
        self._spec = spec
        self._scaler = scaler
        self.now_s = 0.0
        self._num_joined = 0
        self._serving: list[DayReplica] = []
        self._draining: dict[int, DayReplica] = {}
        self._written: list[int] = []
        """Tokens, by replica."""
        self._systems: list[set[int]] = []
        """Prompts that all share, held by each replica."""
        self._held: dict[int, dict[int, _Held]] = {}
        """By session and replica."""
        self._held_of: dict[int, _Held] = {}
        """By request that is under way."""
        self._mean_answer_s = MEAN_ANSWER_S
        self._due: list[tuple[float, int, DayReplica]] = []
        self._num_due = 0
        num = len(workload)
        self._arrived_s: list[float] = workload.arrivals_s.tolist()
        self._prompts: list[int] = workload.prompts.tolist()
        self._answers: list[int] = workload.answers.tolist()
        self._first_s = [0.0] * num
        self._end_s = [0.0] * num
        self._uncached = [0] * num
        self._num_cached = 0
        self._num_open = self._num_begun = 0
        self._num_arrived = 0
        self._num_generated_gone = 0
        """Tokens, by replicas that left."""
        self._meter = DemandMeter(spec.ttft_target_s, spec.tpot_target_s)
        for _ in range(num_replicas):
            self.join()

    def run(self) -> DayOutcome:
        sessions: list[int] = self._workload.sessions.tolist()
        systems: list[int] = self._workload.systems.tolist()
        first_turns: list[int] = self._workload.first_turns.tolist()
        tick_s = self._scaler.setting.tick_s
        begin_s = self._arrived_s[0] // tick_s * tick_s
        self.now_s = begin_s
        self._scaler.begin(max(begin_s, self._scored_from_s))
        next_tick_s = begin_s + tick_s
        for number, arrived_s in enumerate(self._arrived_s):
            while next_tick_s <= arrived_s:
                self._run_until(next_tick_s)
                self._tick()
                next_tick_s += tick_s
            self._run_until(arrived_s)
            self._arrive(number, sessions[number], systems[number], first_turns[number])
        while self._num_open:
            self._run_until(next_tick_s)
            self._tick()
            next_tick_s += tick_s
        return self._outcome()

    @property
    def num_serving(self) -> int:
        return len(self._serving)

    @property
    def num_draining(self) -> int:
        return len(self._draining)

    @property
    def num_ongoing(self) -> int:
        return self._num_open

    @property
    def num_waiting(self) -> int:
        return self._num_arrived - self._num_begun

    @property
    def num_arrived(self) -> int:
        return self._meter.num_arrived

    def join(self) -> None:
        spec = self._spec
        self._serving.append(
            DayReplica(self._num_joined, spec.cost, spec.max_seqs, spec.max_step_tokens)
        )
        self._num_joined += 1
        self._written.append(0)
        self._systems.append(set())

    def drain_one(self) -> None:
        leaves = min(self._serving, key=lambda r: (r.num_running + r.num_waiting, -r.name))
        self._serving.remove(leaves)
        if leaves.is_idle:
            self._num_generated_gone += leaves.num_generated
        else:
            self._draining[leaves.name] = leaves

    def observe(self, on_the_way: OnTheWay) -> ModelObservation:
        setting = self._scaler.setting
        num_kv_tokens = self._spec.num_kv_tokens
        return observe_fleet(
            self._meter.demand(setting.tick_s, self._num_generated),
            ((f"e{each.name}", each.load_view(num_kv_tokens)) for each in self._serving),
            ((f"e{n}", each.load_view(num_kv_tokens)) for n, each in self._draining.items()),
            on_the_way,
            setting,
            max_num_seqs=self._spec.max_seqs,
        )

    @property
    def _num_generated(self) -> int:
        there = (*self._serving, *self._draining.values())
        return self._num_generated_gone + sum(each.num_generated for each in there)

    def _tick(self) -> None:
        self._scaler.tick(self, self.now_s)
        self._meter.turn(self._num_generated)

    def _run_until(self, until_s: float) -> None:
        """All runs that end by then."""
        due = self._due
        while due and due[0][0] <= until_s:
            end_s, _, replica = heapq.heappop(due)
            if end_s != replica.end_s:
                continue  # it was cut
            self._settle(end_s, replica, replica.finish())
            if not replica.is_idle:
                self._await(replica)
            elif replica.name in self._draining:
                del self._draining[replica.name]
                self._num_generated_gone += replica.num_generated
        self.now_s = until_s

    def _settle(self, end_s: float, replica: DayReplica, ended: Ended) -> None:
        for number in ended.begun:
            self._first_s[number] = end_s
            self._num_begun += 1
            self._meter.begin(self._uncached[number], end_s - self._arrived_s[number])
        for number in ended.ended:
            self._end_s[number] = end_s
            self._num_open -= 1
            answer = self._answers[number]
            self._written[replica.name] += answer
            answer_s = end_s - self._first_s[number]
            self._mean_answer_s += _ANSWER_GAIN * (answer_s - self._mean_answer_s)
            self._held_of.pop(number).mark = self._written[replica.name]
            self._meter.end(answer, answer_s)

    def _await(self, replica: DayReplica) -> None:
        self._num_due += 1
        heapq.heappush(self._due, (replica.end_s, self._num_due, replica))

    def _arrive(self, number: int, session: int, system: int, first_turn: int) -> None:
        prompt, answer = self._prompts[number], self._answers[number]
        replica, num_cached = self._route(session, system, first_turn, prompt)
        name = replica.name
        self._num_cached += num_cached
        self._written[name] += prompt - num_cached
        self._systems[name].add(system)
        num_held = prompt // BLOCK_TOKENS * BLOCK_TOKENS
        held = self._held_of[number] = _Held(first_turn, num_held)
        self._held.setdefault(session, {})[name] = held
        self._num_arrived += 1
        self._num_open += 1
        self._meter.arrive(prompt)
        self._uncached[number] = prompt - num_cached
        end_s = replica.end_s
        replica.submit(self.now_s, number, num_cached, prompt, answer)
        if replica.end_s != end_s:
            self._await(replica)

    def _route(
        self, session: int, system: int, first_turn: int, prompt: int
    ) -> tuple[DayReplica, int]:
        """The cheapest, of equals the one with the fewest; and what it has of the prompt."""
        cost = self._spec.cost
        of_session = self._held.get(session, _NOTHING)
        shared = self._workload.shape.num_system_tokens
        most_cached = prompt - 1
        chosen: DayReplica | None = None
        chosen_cached = chosen_sharing = 0
        least = 0.0
        for replica in self._serving:
            name = replica.name
            held = of_session.get(name)
            if held is not None and held.first_turn == first_turn and self._has(replica, held):
                cached = min(held.num_tokens, most_cached)
            elif system in self._systems[name]:
                cached = shared
            else:
                cached = 0
            step_s = (
                cost.base_s
                + cost.per_decode_s * replica.num_running
                + cost.per_context_token_s * replica.num_context
            )
            token_s = cost.per_prefill_token_s + step_s / self._spec.max_step_tokens
            compute_s = (prompt - cached) * token_s
            sharing = replica.num_running + replica.num_waiting
            price = (
                step_s
                + replica.pending_tokens * token_s
                + compute_s
                + sharing * ANSWER_SECOND * (step_s + compute_s)
            )
            if sharing >= self._spec.max_seqs:
                num_too_many = sharing + 1 - self._spec.max_seqs
                price += num_too_many * self._mean_answer_s / self._spec.max_seqs
            if (
                chosen is None
                or price < least - TIE_S
                or (price <= least + TIE_S and sharing < chosen_sharing)
            ):
                chosen, chosen_cached, chosen_sharing, least = replica, cached, sharing, price
        assert chosen is not None, "the last replica that serves never drains"
        return chosen, min(chosen_cached, most_cached)

    def _has(self, replica: DayReplica, held: _Held) -> bool:
        if held.mark is None:
            return True
        room = self._spec.num_kv_tokens - replica.num_context
        return self._written[replica.name] - held.mark < room

    def _outcome(self) -> DayOutcome:
        arrived, first, end = (
            np.array(times) for times in (self._arrived_s, self._first_s, self._end_s)
        )
        later = self._workload.answers - 1
        tpot = np.where(later > 0, (end - first) / np.maximum(later, 1), np.nan)
        return DayOutcome(
            first - arrived, tpot, self._num_cached / int(self._workload.prompts.sum())
        )
