"""The connected engines of one model, what is known of each, and the choice of one for a request.

Does not submit, wait or reconnect.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from app.candidates import Candidates
from app.cell_choice import CellChoice
from app.client import EngineClient
from app.config import PoolsConfig
from app.held_prefixes import HeldPrefixes, held_by
from app.hot_prefixes import HotPrefix, HotPrefixes
from app.index_follower import IndexFollower
from app.member import Member, Send
from app.pools import Pool, Pools
from app.queue import Job, WaitingQueue
from app.routing.candidate import Candidate, Choice, Gateways, Policy, RouteRequest
from app.routing.index import PrefixIndex
from app.routing.policy import choose, outlook
from app.routing.rates import RateBook
from app.routing.traffic import TrafficMeter
from app.sources import Sources, expected_transfer
from cache_tiers.messages import PeerAddress
from engine.messages import CacheEvents, CacheSnapshot


class Ranking(NamedTuple):
    """A request's candidates, and which of them it is."""

    candidates: Sequence[Candidate]
    choice: Choice


class Fleet:
    """Engine id to member."""

    def __init__(
        self,
        prefix_index_max_bytes: int,
        *,
        clock: Callable[[], float],
        pools: PoolsConfig | None = None,
        policy: Policy = choose,
        first_rotation: int | None = None,
        rank: int = 0,
    ) -> None:
        """``first_rotation``: where the turns of equal engines begin; random if not given, so that
        gateways that see the same tie don't all take the same engine. ``rank``: of this gateway.
        """
        self.pools = Pools(pools or PoolsConfig())
        self._prefixes = HeldPrefixes(prefix_index_max_bytes)
        self._hot = HotPrefixes()
        self._rates = RateBook()
        self._traffic = TrafficMeter()
        self._sources = Sources(self._prefixes, self._rates)
        self._follower = IndexFollower(self._prefixes, self._rates, self._sources, clock)
        self._candidates = Candidates(self._prefixes, self._rates, self._sources.pulls)
        self._rank = rank
        self._clock = clock
        self._policy = policy
        self._members: dict[str, Member] = {}
        self.cells = CellChoice(rank=rank)
        if first_rotation is None:
            first_rotation = random.getrandbits(32)
        self._rotation = itertools.count(first_rotation)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    @property
    def index(self) -> PrefixIndex:
        return self._prefixes.index

    @property
    def root_keys(self) -> set[bytes]:
        """Of the weights for which requests are taken."""
        members = self._members.values()
        return {member.client.card.root_key for member in members if member.is_accepting}

    @property
    def num_accepting(self) -> int:
        """Engines that take requests."""
        return sum(member.is_accepting for member in self._members.values())

    @property
    def num_answers_per_s(self) -> float | None:
        """Answers that all engines end per second while they are full; None while unknown."""
        rates = [
            member.client.card.max_num_seqs / member.client.load.mean_answer_s
            for member in self._members.values()
            if member.is_accepting and member.client.load.mean_answer_s > 0
        ]
        return sum(rates) or None

    def reconfigure(self, prefix_index_max_bytes: int, pools: PoolsConfig) -> None:
        """New limits; requests that wait keep the pool they were put into."""
        self.pools = Pools(pools)
        self.index.resize(prefix_index_max_bytes)

    def get(self, engine_id: str | None) -> Member | None:
        return None if engine_id is None else self._members.get(engine_id)

    def member_of(self, client: EngineClient) -> Member | None:
        """None for the connection before the present one, whose last words may come late."""
        member = self._members.get(client.card.engine_id)
        return member if member is not None and member.client is client else None

    def add(self, member: Member) -> None:
        assert member.engine_id not in self._members, f"{member.engine_id} is connected twice"
        self._members[member.engine_id] = member
        self.cells.set_connected(self._members)

    def remove(self, engine_id: str) -> Member | None:
        """Forget the engine and its prefixes."""
        self._prefixes.forget(engine_id)
        self._rates.forget(engine_id)
        self._sources.forget(engine_id)
        member = self._members.pop(engine_id, None)
        self.cells.set_connected(self._members)
        return member

    def see_step(self, member: Member, events: CacheEvents | None) -> None:
        """``member``'s load view is new."""
        self._follower.see_step(member, events)

    def see_snapshot(self, member: Member, snapshot: CacheSnapshot) -> None:
        """All that ``member`` holds, or a part of it."""
        self._follower.see_snapshot(member, snapshot)

    def count_send(self, member: Member, job: Job) -> PeerAddress | None:
        """``job`` goes to ``member``: count its load and prefix before any event confirms them.

        Returns where it should pull the beginning of the prompt from, if from a peer.
        """
        now_s = self._clock()
        member.count_submit(job)
        matching = self._prefixes.match(job)
        held_keys = held_by(matching, member.engine_id)
        candidate = self._candidates.submitted(member, job, held_keys, now_s)
        lender = self._sources.lender(member, job, self._members, matching, now_s)
        num_tokens = len(job.prompt.token_ids)
        prefill, job.predicted_ttft_s = outlook(num_tokens, candidate, lender)
        if not job.is_seed and job.num_attempts <= 1:
            num_held = max((max(held) for held in matching.values()), default=0)
            block_size_tokens = member.client.card.block_size_tokens
            self._hot.note(job.prompt, num_held, block_size_tokens, now_s)
        job.expected_transfer = expected_transfer(prefill)
        num_found = candidate.num_cached_tokens + round(prefill.transfer_tokens)
        num_found = min(num_found, num_tokens - 1)  # the last one is always computed
        # Of what was generated before, the engine does not count what it finds.
        job.predicted_cached_tokens = min(num_found, num_tokens - job.num_generated)
        num_uncached_tokens = num_tokens - num_found
        member.count_unseen(job, num_uncached_tokens)
        if not job.is_seed:
            self._traffic.record(now_s, num_uncached_tokens)
        job.peer_id = prefill.source.peer_id or self._sources.pull_under_way(member, job)
        member.unconfirmed[job.request_id] = Send(job, held_keys.accelerator)
        self._prefixes.count_send(member.engine_id, job)
        peer = self.get(job.peer_id)
        return None if peer is None else peer.client.card.node_cache

    def hottest_prefixes(self, member: Member) -> list[HotPrefix]:
        """Most valuable first, at the speed of ``member``."""
        has_tiers = member.client.card.node_cache is not None
        rates = self._rates.rates(member.engine_id, has_tiers=has_tiers)
        return self._hot.hottest(self._clock(), rates)

    def expected_prefill_s(self, member: Member, job: Job) -> float:
        """What ``job`` costs ``member`` until its prompt is there, transfers included."""
        now_s = self._clock()
        matching = self._prefixes.match(job)
        held_keys = held_by(matching, member.engine_id)
        candidate = self._candidates.submitted(member, job, held_keys, now_s)
        lender = self._sources.lender(member, job, self._members, matching, now_s)
        prefill = outlook(len(job.prompt.token_ids), candidate, lender).prefill
        return prefill.transfer_s + prefill.compute_s

    def choose(self, job: Job, queue: WaitingQueue) -> Member | None:
        """Where ``job`` should go, if to any; to one that lost it only if there are no others."""
        members = self._usable(job, queue)
        if len(members) < 2:
            return members[0] if members else None
        choice = self._policy(*self._question(job, members, queue))
        return self._members[choice.candidate.engine_id]

    def rank(self, job: Job) -> Ranking | None:
        """All that could take ``job``, which waits nowhere, and the choice among them; None if no
        engine can. Pools are not for those that wait elsewhere.
        """
        queue = WaitingQueue()
        members = [member for member in self._neighbours(job, queue) if member.fits(job)]
        if not members:
            return None
        request, candidates = self._question(job, members, queue)
        return Ranking(candidates, self._policy(request, candidates))

    def count_routed(self, member: Member, job: Job) -> None:
        """Somebody else sends ``job`` to ``member``: as ``count_send``, until ``end_routed``."""
        job.submitted_s = self._clock()
        member.begin_routed(job)
        self.count_send(member, job)
        # It is only counted from now on: many that nobody ever sends must not fill the memory.
        job.prompt = replace(job.prompt, token_ids=[], block_keys=[])

    def end_routed(self, member: Member, job: Job) -> None:
        """An engine that got it has said by now what it holds; one that did not says nothing."""
        member.end_routed(job)
        send = member.unconfirmed.pop(job.request_id, None)
        if send is not None and self._members.get(member.engine_id) is member:
            self._prefixes.settle_send(member.engine_id, send, None, self._clock())

    def may_take(self, member: Member, job: Job, queue: WaitingQueue) -> bool:
        """Whether ``member`` can serve ``job``, whatever is best for it."""
        if not member.fits(job):
            return False
        if job.engine_id == member.engine_id or not self.pools.of_their_own:
            return True
        return bool(self._with_place(job, [member], self._neighbours(job, queue), queue))

    def pool_of(self, job: Job) -> Pool:
        """Whose replicas ``job`` is to use."""

        def num_uncached_tokens() -> int:
            matching = self._prefixes.match(job)
            held = [
                self._prefixes.expected(member.client.card, job, matching[member.engine_id]).longest
                for member in self._members.values()
                if member.engine_id in matching
            ]
            return len(job.prompt.token_ids) - max(held, default=0)

        return self.pools.pool_of(job.service_class, num_uncached_tokens)

    def _question(
        self, job: Job, members: Sequence[Member], queue: WaitingQueue
    ) -> tuple[RouteRequest, list[Candidate]]:
        """What the policy is asked."""
        now_s = self._clock()
        matching = self._prefixes.match(job)
        candidates = [
            self._candidates.waiting(
                member,
                job,
                held_by(matching, member.engine_id),
                now_s,
                queue.lane(member.engine_id),
            )
            for member in members
        ]
        request = RouteRequest(
            len(job.prompt.token_ids),
            service_class=job.service_class,
            affinity=job.affinity,
            current=job.engine_id,
            rotation=next(self._rotation),
            gateways=Gateways(
                self._rank,
                max(member.client.num_gateways for member in members),
                self._traffic.requests_per_s(now_s),
                self._traffic.mean_uncached_tokens,
            ),
        )
        return request, candidates

    def _usable(self, job: Job, queue: WaitingQueue) -> Sequence[Member]:
        neighbours = self._neighbours(job, queue)
        fitting = [member for member in neighbours if member.fits(job)]
        fresh = [member for member in fitting if member.engine_id not in job.tried] or fitting
        if not self.pools.of_their_own:
            return fresh
        return self._with_place(job, fresh, neighbours, queue)

    def _neighbours(self, job: Job, queue: WaitingQueue) -> Sequence[Member]:
        """The cell that ``job`` belongs to, or the whole of a smaller fleet."""

        def load_of(engine_id: str) -> int | None:
            member = self._members.get(engine_id)
            if member is None or not member.fits(job) or engine_id in job.tried:
                return None
            load = member.client.load
            num_seen = max(load.num_running + load.num_waiting, member.num_running_samples)
            return num_seen + queue.lane(engine_id).num_samples

        engine_ids = self.cells.choose(job, load_of)
        if engine_ids is None:
            return list(self._members.values())
        return [self._members[id_] for id_ in engine_ids if id_ in self._members]

    def _with_place(
        self, job: Job, members: Sequence[Member], neighbours: Sequence[Member], queue: WaitingQueue
    ) -> Sequence[Member]:
        """Those of ``members`` on which ``job``'s pool has a place left for it."""
        homes = self.pools.homes(m.engine_id for m in neighbours if m.is_accepting)
        has_home = job.pool in homes.values()

        def has_place(member: Member) -> bool:
            waiting = queue.lane(member.engine_id).num_samples_by_pool
            own = job.num_samples if job.engine_id == member.engine_id else 0

            def num_there(pool: Pool) -> int:
                num_own = own if pool is job.pool else 0  # it need not wait for itself
                return member.num_running_by_pool[pool] + waiting[pool] - num_own

            return self.pools.has_place(
                job.pool,
                homes.get(member.engine_id, Pool.SHARED),
                num_there=num_there,
                num_more=job.num_samples,
                has_home=has_home,
                num_gateways=member.client.num_gateways,
            )

        with_place = [member for member in members if has_place(member)]
        return with_place or (members if job.pool is Pool.SHARED else ())
