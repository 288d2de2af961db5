"""The connected engines of one model, what is known of each, and the choice of one for a request.

Owns the prefix index. Does not submit, wait or reconnect.
"""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from app.client import EngineClient
from app.queue import Job, WaitingQueue
from app.routing.index import PrefixIndex
from app.routing.policy import Candidate, Policy, choose, cost_s
from engine.messages import KEY_STRIDE, CacheEvents, CacheSnapshot

_VIEW_AGE_STEPS = 1.5
"""A view is made at the end of a step, of what was there when it began."""

_VIEW_DELAY_S = 0.02
"""On the way, and in this process's queue."""


SNAPSHOT_PERIOD_S = 10.0
"""Between two snapshots that wrong predictions ask for."""


@dataclass(slots=True, eq=False)
class Member:
    """One connected engine."""

    client: EngineClient
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    running: dict[str, Job] = field(default_factory=dict)
    num_running_samples: int = 0
    unseen: dict[Job, int] = field(default_factory=dict)
    """Uncached prompt tokens of submitted requests that the last load view may not show."""
    unconfirmed: dict[str, Job] = field(default_factory=dict)
    """Submitted requests whose prompts the engine may not have computed yet."""
    snapshot_due_s: float | None = None
    """No snapshot is asked for because of a wrong prediction before that."""
    announced_demand: tuple[int, int, int] = (0, 0, 0)
    """As the engine counts: each submit takes one off (``engine.messages.Demand``)."""
    is_retiring: bool = False
    """Not a member of the fleet any more: closed when its last request ended."""

    @property
    def engine_id(self) -> str:
        return self.client.card.engine_id

    @property
    def is_accepting(self) -> bool:
        return self.client.is_accepting and not self.is_retiring

    def fits(self, job: Job) -> bool:
        """Another root key means other weights: the prompt was made for another model."""
        return self.is_accepting and self.client.card.root_key == job.prompt.card_root_key

    def announce_demand(self, num_waiting: tuple[int, int, int]) -> None:
        """Say so to the engine, if it is news."""
        if num_waiting != self.announced_demand and self.client.is_accepting:
            self.announced_demand = num_waiting
            self.client.set_demand(num_waiting)


class Fleet:
    """Engine id to member."""

    def __init__(self, prefix_index_max_bytes: int, *, policy: Policy = choose) -> None:
        self.index = PrefixIndex(prefix_index_max_bytes)
        self._policy = policy
        self._members: dict[str, Member] = {}
        self._rotation = itertools.count()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, engine_id: str | None) -> Member | None:
        return None if engine_id is None else self._members.get(engine_id)

    def add(self, member: Member) -> None:
        assert member.engine_id not in self._members, f"{member.engine_id} is connected twice"
        self._members[member.engine_id] = member

    def remove(self, engine_id: str) -> Member | None:
        """Forget the engine and its prefixes."""
        self.index.forget(engine_id)
        return self._members.pop(engine_id, None)

    def see_step(self, member: Member, events: CacheEvents | None, now_s: float) -> None:
        """``member``'s load view is new: it shows what the engine has begun with, and what was
        submitted before the step began.
        """
        shown_s = now_s - _VIEW_AGE_STEPS * member.client.load.step_time_s - _VIEW_DELAY_S
        member.unseen = {
            job: num_tokens
            for job, num_tokens in member.unseen.items()
            if job.request_id in member.running
            and not job.has_begun
            and job.submitted_s is not None
            and job.submitted_s > shown_s
        }
        if events is not None and self.index.apply(member.engine_id, events):
            member.client.request_snapshot()
        self._settle_sends(member, now_s)

    def see_snapshot(self, member: Member, snapshot: CacheSnapshot) -> None:
        """All that ``member`` holds, or a part of it."""
        if self.index.seed(member.engine_id, snapshot):
            member.client.request_snapshot()

    def count_send(self, member: Member, job: Job) -> None:
        """``job`` goes to ``member``: count its load and prefix before any event confirms them."""
        by_class = list(member.announced_demand)
        by_class[job.service_class] = max(0, by_class[job.service_class] - 1)
        member.announced_demand = (by_class[0], by_class[1], by_class[2])
        keys = job.prompt.index_keys
        num_matching = self.index.num_matching(keys).get(member.engine_id, 0)
        candidate = _candidate(member, num_matching, 0, 0)
        num_tokens = len(job.prompt.token_ids)
        num_cached = min(candidate.num_cached_tokens, num_tokens - 1)
        job.predicted_cached_tokens = num_cached
        job.predicted_ttft_s = cost_s(num_tokens, candidate)
        member.unseen[job] = num_tokens - num_cached
        member.unconfirmed[job.request_id] = job
        self.index.count_send(member.engine_id, job.request_id, keys)

    def choose(self, job: Job, queue: WaitingQueue) -> Member | None:
        """Where ``job`` should go, if to any; to one that lost it only if there are no others."""
        fitting = [member for member in self._members.values() if member.fits(job)]
        fresh = [member for member in fitting if member.engine_id not in job.tried] or fitting
        if len(fresh) < 2:
            return fresh[0] if fresh else None
        matching = self.index.num_matching(job.prompt.index_keys)
        candidates = [
            _waiting_candidate(member, matching.get(member.engine_id, 0), job, queue)
            for member in fresh
        ]
        chosen = self._policy(
            len(job.prompt.token_ids),
            candidates,
            current=job.engine_id,
            rotation=next(self._rotation),
        )
        return self._members[chosen.engine_id]

    def _settle_sends(self, member: Member, now_s: float) -> None:
        """The engine has begun with some requests, others have ended: its events say what it holds.

        A prediction that its events do not explain means that they do not tell the truth: ask.
        """
        done = [
            job
            for job in member.unconfirmed.values()
            if job.has_begun or job.request_id not in member.running
        ]
        stride_tokens = KEY_STRIDE * member.client.card.block_size_tokens
        for job in done:
            del member.unconfirmed[job.request_id]
            num_cached = job.num_cached_tokens
            if num_cached is not None and job.request_id in member.running:
                # One token at least is computed, whatever is cached: its block does not count.
                num_cached += member.client.card.block_size_tokens
            else:
                num_cached = None
            is_wrong = self.index.settle_send(
                member.engine_id,
                job.request_id,
                None if num_cached is None else num_cached // stride_tokens,
            )
            if is_wrong and (member.snapshot_due_s is None or now_s >= member.snapshot_due_s):
                member.snapshot_due_s = now_s + SNAPSHOT_PERIOD_S
                member.client.request_snapshot()


def _waiting_candidate(
    member: Member, num_matching: int, job: Job, queue: WaitingQueue
) -> Candidate:
    lane = queue.lane(member.engine_id)
    num_waiting, num_waiting_tokens = lane.num_samples, lane.num_tokens
    if job.engine_id == member.engine_id:  # it need not wait for itself
        num_waiting -= job.num_samples
        num_waiting_tokens -= len(job.prompt.token_ids)
    return _candidate(member, num_matching, num_waiting, num_waiting_tokens)


def _candidate(
    member: Member, num_matching: int, num_waiting: int, num_waiting_tokens: int
) -> Candidate:
    card = member.client.card
    return Candidate(
        engine_id=member.engine_id,
        load=member.client.load,
        block_size_tokens=card.block_size_tokens,
        num_cached_tokens=num_matching * KEY_STRIDE * card.block_size_tokens,
        num_in_flight=member.num_running_samples + num_waiting,
        num_unseen=sum(unseen.num_samples for unseen in member.unseen) + num_waiting,
        num_unseen_tokens=sum(member.unseen.values()) + num_waiting_tokens,
        max_num_seqs=card.max_num_seqs,
    )
