"""A fleet in which only routing is real: fast enough to replay an hour of traffic in a second.

A replica computes one prompt after the other at a fixed speed and keeps what it computed in LRU
tiers (``routing_cache``). An answer takes a fixed time per token and counts as load only. What a
request meets is settled when it is sent: nothing that comes later moves it. So there are no steps,
no batches, and decodes don't slow prefill down: the order of policies is informative, the absolute
seconds are not.

Transfers have bandwidth and share it: a replica sends what peers pull from it one after the other,
and loads what it needs itself before it computes. An engine uses what its own node holds wherever
that is faster than computing; from a peer it pulls what the policy says, unless computing is faster
after all. Must not know how policies choose.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from app.routing.candidate import Choice, HeldPrefix, RouteRequest, SourceKind
from engine.seeds import mix64
from simulator.clock import VirtualClock
from simulator.errors import FleetSpecError
from simulator.outcome import Outcome, RequestOutcome
from simulator.policies.registry import RegisteredPolicy
from simulator.routing_cache import FleetCaches
from simulator.routing_gateway import Picture, Send, SimulatedGateway
from simulator.routing_load import Placement
from simulator.routing_spec import FleetChange, RoutingSpec, prefill_s
from simulator.told_record import ToldRecord
from simulator.workload import SimulatedRequest, Workload, affinity_of, followers


class _Prefix(NamedTuple):
    """What a request does not compute, and how long it takes to get there."""

    num_cached_tokens: int
    num_loaded_tokens: int
    ready_s: float


class RoutingModel:
    """One replay of a workload by one policy. Owner of the true fleet."""

    def __init__(
        self,
        spec: RoutingSpec,
        policy: RegisteredPolicy,
        workload: Workload,
        changes: Sequence[FleetChange] = (),
    ) -> None:
        self.spec = spec
        self._choose = policy.choose
        first = [request for request in workload.requests if request.think_s is None]
        self._arrivals = iter(sorted(first, key=lambda request: request.arrival_s))
        self._changes = changes
        self._block_size = workload.block_size_tokens
        capacities = spec.capacities(self._block_size)
        self._truth = Picture(FleetCaches(capacities), [])
        self._link_free_s: list[float] = []
        self._names: list[str] = []
        self._number_of: dict[str, int] = {}
        self._serving: list[int] = []
        self._clock = VirtualClock()
        self._outcomes: list[tuple[SimulatedRequest, RequestOutcome]] = []
        self._followers = followers(workload)
        self._num_sent = 0
        self._is_exact = is_exact = spec.num_gateways == 1
        self._gateways = [
            SimulatedGateway(
                rank,
                self._truth if is_exact else Picture(FleetCaches(capacities), []),
                self._block_size,
                spec.rates,
                capacities.accelerator,
                0.0 if is_exact else spec.stale_s,
                ToldRecord(spec.told_blocks, self._block_size) if policy.is_told else None,
                is_exact=is_exact,
            )
            for rank in range(spec.num_gateways)
        ]
        for _ in range(spec.num_replicas):
            self._join()

    def run(self) -> Outcome:
        clock = self._clock
        for change in self._changes:
            clock.at(change.when_s, partial(self._change, change))
        self._await_next()
        clock.run()
        return Outcome([outcome for _, outcome in self._outcomes], engine_ids=tuple(self._names))

    def _await_next(self) -> None:
        """Of those that follow no other. One at a time: what is due stays few."""
        request = next(self._arrivals, None)
        if request is not None:
            self._clock.at(request.arrival_s, partial(self._arrive_in_turn, request))

    def _arrive_in_turn(self, request: SimulatedRequest) -> None:
        self._await_next()
        self._arrive(request)

    def _arrive(self, request: SimulatedRequest) -> None:
        now_s = self._clock.now_s
        outcome = RequestOutcome(
            request.request_id,
            "",
            now_s,
            now_s,
            now_s,
            request.num_prompt_tokens,
            request.num_answer_tokens,
        )
        self._outcomes.append((request, outcome))
        self._send(request, outcome)
        if (follower := self._followers.get(request.request_id)) is not None:
            self._follow(outcome, follower)

    def _follow(self, outcome: RequestOutcome, follower: SimulatedRequest) -> None:
        """It comes after the answer before it and a time to think, also if that moved meanwhile."""
        assert follower.think_s is not None
        due_s = outcome.end_s + follower.think_s
        if due_s <= self._clock.now_s:
            self._arrive(follower)
        else:
            self._clock.at(due_s, partial(self._follow, outcome, follower))

    def _send(self, request: SimulatedRequest, outcome: RequestOutcome) -> None:
        """Choose, and settle what becomes of it. A first token that came already stays."""
        now_s = self._clock.now_s
        number = self._num_sent % len(self._gateways)
        rotation = self._num_sent // len(self._gateways) + (mix64(number) & 0xFFFFFFFF)
        self._num_sent += 1
        gateway = self._gateways[number]
        route = RouteRequest(
            request.num_prompt_tokens,
            service_class=request.service_class,
            affinity=affinity_of(request, self._block_size),
            rotation=rotation,
            gateways=gateway.others(now_s, len(self._gateways)),
        )
        seen = gateway.look(now_s, request, self._serving, self._names)
        choice = self._choose(route, seen)
        replica = self._number_of[choice.candidate.engine_id]
        load = self._truth.loads[replica]
        start_s = max(now_s, load.free_at_s)
        prefix = self._prefix(request, replica, choice, start_s)
        first_token_s = prefix.ready_s + self._prefill_s(request, prefix.num_cached_tokens)
        end_s = first_token_s + request.num_answer_tokens * self.spec.answer_token_s
        placement = Placement(
            start_s,
            first_token_s,
            end_s,
            self._num_blocks(request),
            request.num_prompt_tokens,
            prefix.num_cached_tokens,
        )
        send = Send(now_s, replica, request, placement)
        self._truth.note(send, is_own=False)
        for other in self._gateways:
            if other is gateway:
                other.note(send, is_own=True)
            else:
                other.hear(send)
        outcome.engine_id = choice.candidate.engine_id
        outcome.end_s = end_s
        outcome.num_cached_tokens = prefix.num_cached_tokens
        outcome.num_loaded_tokens = prefix.num_loaded_tokens
        if outcome.first_token_s <= outcome.arrival_s:
            outcome.first_token_s = first_token_s

    def _prefix(
        self, request: SimulatedRequest, replica: int, choice: Choice, start_s: float
    ) -> _Prefix:
        """The fastest way to the first token, of those that the engine has."""
        longest = request.num_prompt_tokens - 1  # the last token is computed in any case
        # What an exact view showed need not be matched again.
        held = choice.candidate.held if self._is_exact else self._held(request, replica)
        near = min(longest, held.accelerator_tokens)
        source = choice.source
        if near >= held.longest and source.kind is not SourceKind.PEER:
            return _Prefix(near, 0, start_s)
        host, disk = min(longest, held.host_tokens), min(longest, held.disk_tokens)
        rates = self.spec.rates
        ways = [_Prefix(near, 0, start_s)]
        ready_s = start_s
        if host > near and rates.host_tokens_per_s > 0:
            ready_s += (host - near) / rates.host_tokens_per_s
            ways.append(_Prefix(host, host - near, ready_s))
        reached = max(near, host)
        if disk > reached and rates.disk_tokens_per_s > 0:
            ready_s += (disk - reached) / rates.disk_tokens_per_s
            ways.append(_Prefix(disk, disk - near, ready_s))
        peer = None
        if source.kind is SourceKind.PEER and source.peer_id is not None:
            peer = self._number_of[source.peer_id]
            remote = min(longest, self._held(request, peer).longest)
            if remote > near and rates.peer_tokens_per_s > 0:
                begin_s = max(start_s, self._link_free_s[peer])
                ready_s = begin_s + (remote - near) / rates.peer_tokens_per_s
                ways.append(_Prefix(remote, remote - near, ready_s))
            else:
                peer = None
        if len(ways) == 1:
            return ways[0]
        best = min(
            ways, key=lambda way: way.ready_s + self._prefill_s(request, way.num_cached_tokens)
        )
        if peer is not None and best is ways[-1]:
            self._link_free_s[peer] = best.ready_s
        return best

    def _held(self, request: SimulatedRequest, replica: int) -> HeldPrefix:
        caches = self._truth.caches
        return HeldPrefix(
            *[
                caches.match(replica, request.block_keys, tier) * self._block_size
                for tier in range(caches.num_tiers)
            ]
        )

    def _prefill_s(self, request: SimulatedRequest, num_cached_tokens: int) -> float:
        return prefill_s(self.spec.rates, request, num_cached_tokens)

    def _num_blocks(self, request: SimulatedRequest) -> int:
        return -(-request.num_prompt_tokens // self._block_size)

    def _change(self, change: FleetChange) -> None:
        if change.lost_engine_id is None:
            self._join()
        else:
            self._lose(change.lost_engine_id)

    def _join(self) -> None:
        number = len(self._names)
        self._serving.append(number)
        self._names.append(f"e{number}")
        self._number_of[self._names[number]] = number
        self._link_free_s.append(0.0)
        self._truth.add_replica()
        for gateway in self._gateways:
            gateway.add_replica()

    def _lose(self, engine_id: str) -> None:
        """Its requests are sent again, as a whole; what streams keeps the first token it had."""
        replica = self._number_of[engine_id]
        if self._serving == [replica]:
            raise FleetSpecError(f"{engine_id} is the last replica: requests would go nowhere")
        self._serving.remove(replica)
        self._truth.forget_replica(replica)
        for gateway in self._gateways:
            gateway.forget_replica(replica)
        now_s = self._clock.now_s
        for request, outcome in self._outcomes:
            if outcome.engine_id == engine_id and outcome.end_s > now_s:
                if outcome.first_token_s > now_s:
                    outcome.first_token_s = outcome.arrival_s
                self._send(request, outcome)
