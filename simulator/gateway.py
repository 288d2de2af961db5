"""One gateway of a simulated fleet: the production fleet view with its prefix index, fed with what
replicas reported a while ago, and a routing policy of any name.

A request goes to the chosen replica at once: none waits in the gateway for a credit. Must not know
how replicas work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from app.client import EngineClient
from app.fleet import Fleet
from app.member import Member
from app.queue import Answer, Job, WaitingQueue
from app.routing.candidate import LOCAL, Candidate, Choice, RouteRequest, Source
from app.text.tokenization import Prompt
from cache_tiers.messages import PeerAddress
from engine.messages import KEY_STRIDE, CacheSnapshot, LoadView, ModelCard, SamplingParams
from simulator.performance import NO_TRANSFERS, Bandwidths
from simulator.policies.base import RoutingPolicy, Seen
from simulator.replica import ROOT_KEY, Report, SimulatedReplica
from simulator.replica_spec import BlockUnits
from simulator.told_record import ToldRecord
from simulator.workload import SimulatedRequest, affinity_of

INDEX_MAX_BYTES = 2**30
_NO_TIMEOUT_S = 1e12
_NOTHING_WAITS = WaitingQueue()
_NODE_CACHE = PeerAddress("simulated", 1, b"")
"""Others can pull what the replica holds; nobody connects."""


@dataclass(slots=True, eq=False)
class _Connection:
    """As much of an ``EngineClient`` as a fleet view reads."""

    card: ModelCard
    load: LoadView
    ask_snapshot: Callable[[], None]
    num_gateways: int
    is_accepting: bool = True

    def request_snapshot(self) -> None:
        self.ask_snapshot()


class FleetGateway:
    """Owner of what one gateway knows."""

    def __init__(
        self,
        number: int,
        num_gateways: int,
        choose: RoutingPolicy,
        units: BlockUnits,
        *,
        stale_s: float,
        told: ToldRecord | None,
        ask_snapshot: Callable[["FleetGateway", str], None],
    ) -> None:
        """``told``: for policies that go by what was sent before."""
        self._num_gateways = num_gateways
        self._choose = choose
        self._units = units
        self._stale_s = stale_s
        self._told = told
        self._ask_snapshot = ask_snapshot
        self._now_s = 0.0
        """What the fleet view takes for the present: for a report, when that was made."""
        self._fleet = Fleet(
            INDEX_MAX_BYTES,
            clock=lambda: self._now_s,
            policy=self._decide,
            first_rotation=number * 0x9E3779B9,
            rank=number,
        )
        self._rates: dict[str, Bandwidths] = {}
        """Of replicas that load from anywhere."""
        self._numbers: dict[str, int] = {}
        """Of all replicas there ever were, in the order of their joining."""
        self._keys: Sequence[bytes] = ()
        """Of the prompt that is being routed."""
        self._choice: Choice | None = None
        self._jobs: dict[str, tuple[Member, Job]] = {}

    def add(self, replica: SimulatedReplica, load: LoadView) -> None:
        """It may be sent requests from now on."""
        bandwidths = replica.spec.model.bandwidths
        card = ModelCard(
            engine_id=replica.engine_id,
            model="simulated",
            weights_revision="",
            root_key=ROOT_KEY,
            block_size_tokens=self._units.told_block_tokens,
            max_model_len=replica.max_request_tokens,
            max_request_tokens=replica.max_request_tokens,
            vocab_size=1,
            eos_token_ids=[],
            tokenizer_json=b"",
            chat_template=None,
            bos_token=None,
            eos_token=None,
            created_s=0,
            max_num_seqs=replica.spec.config.max_num_seqs,
            node_id=replica.engine_id,  # none shares its tiers
            node_cache=_NODE_CACHE if bandwidths.peer_tokens_per_s else None,
        )
        engine_id = replica.engine_id
        connection = _Connection(
            card, load, lambda: self._ask_snapshot(self, engine_id), self._num_gateways
        )
        # A fleet view submits nothing, so that the rest of a client is not asked for.
        self._fleet.add(Member(cast("EngineClient", connection)))
        self._numbers[engine_id] = len(self._numbers)
        if self._told is not None:
            self._told.add_replica()
        if bandwidths != NO_TRANSFERS:
            self._rates[engine_id] = bandwidths

    def drain(self, engine_id: str) -> None:
        """Send it nothing more."""
        member = self._fleet.get(engine_id)
        assert member is not None
        member.is_retiring = True

    def remove(self, engine_id: str) -> None:
        """It is gone, with all that was sent to it."""
        member = self._fleet.remove(engine_id)
        assert member is not None
        for request_id in member.running:
            del self._jobs[request_id]
        if self._told is not None:
            self._told.forget_replica(self._numbers[engine_id])

    def route(self, now_s: float, request: SimulatedRequest) -> tuple[str, Source] | None:
        """Where ``request`` goes, and from where its prefix; it counts as sent. None: there is no
        replica that can hold it.
        """
        self._now_s = now_s
        job = self._job(now_s, request)
        self._keys, self._choice = request.block_keys, None
        member = self._fleet.choose(job, _NOTHING_WAITS)
        if member is None:
            return None
        job.engine_id = member.engine_id
        job.is_running = True
        job.submitted_s = now_s
        job.num_open_samples = 1
        member.begin(job)
        self._fleet.count_send(member, job)
        self._jobs[request.request_id] = (member, job)
        if self._told is not None:
            self._told.note(now_s, self._numbers[member.engine_id], request)
        return member.engine_id, LOCAL if self._choice is None else self._choice.source

    def hear_answers(self, report: Report) -> None:
        """Of its own requests a gateway hears at once."""
        for sequence in report.begun:
            known = self._jobs.get(sequence.request.request_id)
            if known is not None:
                job = known[1]
                job.has_begun = True
                job.num_cached_tokens = sequence.cached_tokens
        for sequence in report.ended:
            known = self._jobs.pop(sequence.request.request_id, None)
            if known is not None:
                known[0].end_samples(known[1], 1)

    def hear(self, report: Report) -> None:
        """The replica's load and cache events."""
        member = self._fleet.get(report.engine_id)
        if member is None:
            return  # lost since
        self._now_s = report.made_s
        cast("_Connection", member.client).load = report.load
        for events in report.events[:-1]:
            self._fleet.index.apply(report.engine_id, events)
        self._fleet.see_step(member, report.events[-1] if report.events else None)

    def hear_snapshot(self, engine_id: str, parts: Sequence[CacheSnapshot]) -> None:
        """All that the replica holds, as it was asked for."""
        member = self._fleet.get(engine_id)
        if member is not None:
            for part in parts:
                self._fleet.see_snapshot(member, part)

    def _job(self, now_s: float, request: SimulatedRequest) -> Job:
        keys = request.block_keys
        units = self._units
        # Every 8th key is one of the workload's, as a fleet view looks them up; the others are
        # only counted.
        told = [b""] * (len(keys) * units.told_per_block)
        index_keys = keys[units.key_stride - 1 :: units.key_stride]
        told[KEY_STRIDE - 1 :: KEY_STRIDE] = index_keys
        return Job(
            request.request_id,
            # Only their number counts.
            Prompt(cast("list[int]", range(request.num_prompt_tokens)), ROOT_KEY, told, ROOT_KEY),
            SamplingParams(request.num_answer_tokens),
            cast("Answer", None),  # a fleet view answers nobody
            arrived_s=now_s,
            deadline_s=now_s + _NO_TIMEOUT_S,
            service_class=request.service_class,
            affinity=affinity_of(request, units.block_size_tokens),
        )

    def _decide(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Choice:
        if self._stale_s or self._rates:
            candidates = [self._complete(candidate) for candidate in candidates]
        if self._told is None:
            seen = [Seen(candidate) for candidate in candidates]
        else:
            self._told.advance(self._now_s)
            numbers = [self._numbers[candidate.engine_id] for candidate in candidates]
            seen = self._told.add_to(candidates, numbers, self._keys)
        self._choice = self._choose(request, seen)
        return self._choice

    def _complete(self, candidate: Candidate) -> Candidate:
        """With the speed of transfers, of which replicas report none, and the true age."""
        known = self._rates.get(candidate.engine_id, NO_TRANSFERS)
        rates = replace(
            candidate.rates,
            host_tokens_per_s=known.host_tokens_per_s,
            disk_tokens_per_s=known.disk_tokens_per_s,
            peer_tokens_per_s=known.peer_tokens_per_s,
        )
        return msgspec.structs.replace(
            candidate, rates=rates, age_s=candidate.age_s + self._stale_s
        )
