"""One replica on the virtual clock: its engine's runs, its node's tiers and its network link.

Before a request enters the engine, the part of its prompt that lies in a tier of the node, or with
the peer that the router named, is loaded, if that is faster than computing it. Must not know
gateways or policies.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from app.routing.candidate import SourceKind
from engine.messages import (
    CacheEvents,
    EngineRequest,
    LoadView,
    Medium,
    SamplingParams,
)
from engine.sequence import Sequence as EngineSequence
from engine.step_time import StepWork
from simulator.clock import VirtualClock
from simulator.planned_engine import PlannedEngine, Progress
from simulator.replica_spec import BlockUnits, ReplicaSpec
from simulator.tiers import Link, NodeTiers
from simulator.workload import SimulatedRequest

ROOT_KEY = bytes(16)
_NO_TIMEOUT_S = 1e12


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica tells at the end of a run."""

    engine_id: str
    made_s: float
    load: LoadView
    events: Sequence[CacheEvents]
    begun: Sequence[EngineSequence]
    """Their first token is here."""
    ended: Sequence[EngineSequence]


class _Load(NamedTuple):
    """A way to get more of a prompt onto the accelerator."""

    end: int
    """Leading blocks that are there afterwards."""
    done_s: float
    source: SourceKind = SourceKind.LOCAL
    links: Sequence[Link] = ()
    """Taken until then."""


@dataclass(slots=True)
class _Entry:
    """A request here that has not ended."""

    request: SimulatedRequest
    num_loaded_tokens: int = 0
    sequence: EngineSequence | None = None
    """None while its prefix is loaded."""


@dataclass(slots=True, eq=False)
class _Wake:
    """When the run under way ends; a later one replaces it."""

    is_void: bool = False


class SimulatedReplica:
    """Owner of one replica's requests from submit to end."""

    def __init__(
        self,
        engine_id: str,
        spec: ReplicaSpec,
        units: BlockUnits,
        clock: VirtualClock,
        listener: Callable[[Report], None],
    ) -> None:
        self.engine_id = engine_id
        self.began_s = clock.now_s
        self.spec = spec
        self._units = units
        self._clock = clock
        self._listener = listener
        size = units.block_size_tokens
        self._engine = PlannedEngine(
            spec.config,
            spec.model,
            num_blocks=spec.num_kv_tokens // size,
            block_size_tokens=size,
            key_stride=units.key_stride,
            stretches=not spec.takes_every_step,
        )
        self._tiers = NodeTiers(
            host_blocks=spec.host_tokens // size,
            disk_blocks=spec.disk_tokens // size,
            key_stride=units.key_stride,
        )
        rates = spec.model.bandwidths
        self._host_link = Link(rates.host_tokens_per_s)
        self._disk_link = Link(rates.disk_tokens_per_s)
        self.network = Link(rates.peer_tokens_per_s)
        self._open: dict[str, _Entry] = {}
        self._loaded: list[Sequence[bytes]] = []
        """Prefixes to be put into the cache before the next run."""
        self._wake: _Wake | None = None
        self._num_events = 0
        self.num_loaded_tokens: Counter[SourceKind] = Counter()

    @property
    def num_preemptions(self) -> int:
        return self._engine.num_preemptions

    @property
    def max_request_tokens(self) -> int:
        return self._engine.max_request_tokens

    @property
    def is_idle(self) -> bool:
        return not self._open

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def num_loaded_tokens_of(self, request_id: str) -> int:
        """Tokens that were loaded for a request that has not ended yet."""
        return self._open[request_id].num_loaded_tokens

    def submit(
        self, number: int, request: SimulatedRequest, peer: "SimulatedReplica | None" = None
    ) -> None:
        """Start ``request``; ``number`` is its own, ``peer`` whom the router says to pull from."""
        now_s = self._clock.now_s
        entry = self._open[request.request_id] = _Entry(request)
        sequence_request = EngineRequest(
            request.request_id,
            [number] * request.num_prompt_tokens,  # equal to no other prompt's where keys end
            ROOT_KEY,
            list(request.block_keys),
            SamplingParams(request.num_answer_tokens),
            _NO_TIMEOUT_S,
            service_class=request.service_class,
        )
        if peer is None and not self.spec.host_tokens:
            self._enter(entry, sequence_request, ())
            return
        num_held = self._held_blocks(request)
        load = self._best_load(request, num_held, peer)
        if load.end == num_held:
            self._enter(entry, sequence_request, ())
            return
        entry.num_loaded_tokens = (load.end - num_held) * self._units.block_size_tokens
        self.num_loaded_tokens[load.source] += entry.num_loaded_tokens
        for link in load.links:
            link.occupy(load.done_s)
        keys = request.block_keys[: load.end]
        self._clock.at(
            load.done_s, partial(self._enter, entry, sequence_request, keys, now_s=now_s)
        )

    def reach(self, request: SimulatedRequest) -> int:
        """Leading blocks of the prompt that a peer can pull from here."""
        return self._tiers.match(request.block_keys, self._held_blocks(request), with_disk=False)

    def lose(self) -> list[SimulatedRequest]:
        """The replica is gone; returns the requests that had not ended."""
        if self._wake is not None:
            self._wake.is_void = True
        lost = [entry.request for entry in self._open.values()]
        self._open.clear()
        return lost

    def first_report(self) -> Report:
        """Of a replica that has just started."""
        return self._report(Progress())

    def _held_blocks(self, request: SimulatedRequest) -> int:
        keys = request.block_keys
        num_tokens = self._engine.find_prefix(keys, request.num_prompt_tokens)
        return min(len(keys), -(-num_tokens // self._units.block_size_tokens))

    def _best_load(
        self, request: SimulatedRequest, held: int, peer: "SimulatedReplica | None"
    ) -> _Load:
        """What has the whole prompt ready first, if nobody else computes."""
        now_s, size = self._clock.now_s, self._units.block_size_tokens
        keys = request.block_keys
        ways = [_Load(held, now_s)]
        in_host = held
        if self.spec.host_tokens:
            in_host = self._tiers.match(keys, held, with_disk=False)
            done_s = self._host_link.done_s(now_s, (in_host - held) * size)
            ways.append(_Load(in_host, done_s, SourceKind.HOST, [self._host_link]))
        if self.spec.disk_tokens:
            in_disk = self._tiers.match(keys, held, with_disk=True)
            # Blocks of both tiers lie mixed; the slower link is charged with all of them.
            done_s = self._disk_link.done_s(now_s, (in_disk - held) * size)
            ways.append(_Load(in_disk, done_s, SourceKind.DISK, [self._disk_link]))
        if peer is not None and peer is not self and self.network.tokens_per_s:
            in_peer = peer.reach(request)
            num_tokens = max(0, in_peer - held) * size
            links = [self.network, peer.network]
            done_s = max(link.done_s(now_s, num_tokens) for link in links)
            ways.append(_Load(in_peer, done_s, SourceKind.PEER, links))
        computed, *loaded = ways
        return min(
            [computed, *(way for way in loaded if way.end > held)],
            key=lambda way: way.done_s + self._prefill_s(request, way.end * size),
        )

    def _prefill_s(self, request: SimulatedRequest, num_cached: int) -> float:
        num_tokens = max(1, request.num_prompt_tokens - num_cached)
        mean_position = (num_cached + request.num_prompt_tokens) / 2
        work = StepWork(num_tokens, num_attended_tokens=num_tokens * mean_position)
        return self.spec.model.step_time_s(work)

    def _enter(
        self,
        entry: _Entry,
        request: EngineRequest,
        loaded_keys: Sequence[bytes],
        *,
        now_s: float | None = None,
    ) -> None:
        """Into the engine, behind what it does now; ``now_s``: when it came."""
        if self._open.get(request.request_id) is not entry:
            return  # the replica was lost meanwhile
        if loaded_keys:
            self._loaded.append(loaded_keys)
        came_s = self._clock.now_s if now_s is None else now_s
        entry.sequence = self._engine.add(request, came_s)
        if self._wake is None:
            self._begin()
        else:
            self._wake_at(self._engine.cut(self._clock.now_s))

    def _begin(self) -> None:
        for keys in self._loaded:
            self._engine.store(keys)
        self._loaded.clear()
        self._wake_at(self._engine.begin(self._clock.now_s))

    def _wake_at(self, when_s: float) -> None:
        if self._wake is not None:
            self._wake.is_void = True
        self._wake = wake = _Wake()
        self._clock.at(when_s, partial(self._end_run, wake))

    def _end_run(self, wake: _Wake) -> None:
        if wake.is_void:
            return
        self._wake = None
        progress = self._engine.finish()
        for sequence in progress.begun:
            self._tiers.store(self._open[sequence.request.request_id].request.block_keys)
        report = self._report(progress) if progress.has_news else None
        if self._engine.has_work:
            self._begin()
        if report is not None:
            self._listener(report)
        for sequence in progress.ended:
            del self._open[sequence.request.request_id]

    def _report(self, progress: Progress) -> Report:
        return Report(
            self.engine_id,
            self._clock.now_s,
            self.load_view(),
            self._take_events(),
            progress.begun,
            progress.ended,
        )

    def load_view(self) -> LoadView:
        """As routers count blocks, and with those whose prefix is being loaded."""
        load = self._engine.load_view()
        factor = self._units.told_per_block
        loading = [entry for entry in self._open.values() if entry.sequence is None]
        num_tokens = sum(e.request.num_prompt_tokens - e.num_loaded_tokens for e in loading)
        if factor == 1 and not loading:
            return load
        return msgspec.structs.replace(
            load,
            num_waiting=load.num_waiting + len(loading),
            num_waiting_tokens=load.num_waiting_tokens + num_tokens,
            pending_prefill_tokens=load.pending_prefill_tokens + num_tokens,
            num_free_blocks=load.num_free_blocks * factor,
            num_empty_blocks=load.num_empty_blocks * factor,
            num_blocks=load.num_blocks * factor,
        )

    def _take_events(self) -> list[CacheEvents]:
        """Of all media, numbered as one row."""
        taken = self._engine.take_events()
        changes = self._tiers.take_changes()
        if taken is not None:
            changes.insert(0, (Medium.ACCELERATOR, taken.stored, taken.evicted))
        events = []
        for medium, stored, evicted in changes:
            self._num_events += 1
            events.append(CacheEvents(self._num_events, stored, evicted, medium))
        return events
