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
from app.routing.policy import Candidate, choose
from engine.messages import KEY_STRIDE, CacheEvents

_VIEW_AGE_STEPS = 1.5
"""A view is made at the end of a step, of what was there when it began."""

_VIEW_DELAY_S = 0.02
"""On the way, and in this process's queue."""


@dataclass(slots=True, eq=False)
class Member:
    """One connected engine."""

    client: EngineClient
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    running: dict[str, Job] = field(default_factory=dict)
    num_running_samples: int = 0
    unseen: dict[Job, int] = field(default_factory=dict)
    """Uncached prompt tokens of submitted requests that the last load view may not show."""
    announced_demand: int = 0
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

    def announce_demand(self, num_waiting: int) -> None:
        """Say so to the engine, if it is news."""
        if num_waiting != self.announced_demand and self.client.is_accepting:
            self.announced_demand = num_waiting
            self.client.set_demand(num_waiting)


class Fleet:
    """Engine id to member."""

    def __init__(self, prefix_index_max_keys: int) -> None:
        self.index = PrefixIndex(prefix_index_max_keys)
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
        if events is not None:
            self.index.apply(member.engine_id, events)

    def count_send(self, member: Member, job: Job) -> None:
        """``job`` goes to ``member``: count its load and prefix before any event confirms them."""
        member.announced_demand = max(0, member.announced_demand - 1)
        keys = job.prompt.index_keys
        num_matching = self.index.num_matching(keys).get(member.engine_id, 0)
        num_cached = num_matching * KEY_STRIDE * member.client.card.block_size_tokens
        member.unseen[job] = len(job.prompt.token_ids) - num_cached
        self.index.add(member.engine_id, keys)

    def choose(self, job: Job, queue: WaitingQueue) -> Member | None:
        """Where ``job`` should go, if to any; to one that lost it only if there are no others."""
        fitting = [member for member in self._members.values() if member.fits(job)]
        fresh = [member for member in fitting if member.engine_id not in job.tried] or fitting
        if len(fresh) < 2:
            return fresh[0] if fresh else None
        matching = self.index.num_matching(job.prompt.index_keys)
        candidates = [
            _candidate(member, matching.get(member.engine_id, 0), job, queue) for member in fresh
        ]
        chosen = choose(
            len(job.prompt.token_ids),
            candidates,
            current=job.engine_id,
            rotation=next(self._rotation),
        )
        return self._members[chosen.engine_id]


def _candidate(member: Member, num_matching: int, job: Job, queue: WaitingQueue) -> Candidate:
    lane = queue.lane(member.engine_id)
    num_waiting, num_waiting_tokens = lane.num_samples, lane.num_tokens
    if job.engine_id == member.engine_id:  # it need not wait for itself
        num_waiting -= job.num_samples
        num_waiting_tokens -= len(job.prompt.token_ids)
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
