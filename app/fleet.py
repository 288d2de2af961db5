"""The connected engines of one model, what is known of each, and the choice of one for a request.

Owns the prefix index. Does not submit, wait or reconnect.
"""

import asyncio
import itertools
import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from app.client import EngineClient
from app.queue import Job, WaitingQueue
from app.routing.candidate import Candidate, HeldPrefix, Policy, RouteRequest
from app.routing.index import PrefixIndex
from app.routing.policy import choose, ttft_s
from app.routing.stride_remainder import StrideRemainder
from engine.messages import KEY_STRIDE, CacheEvents, CacheSnapshot

_VIEW_AGE_STEPS = 1.5
"""A view is made at the end of a step, of what was there when it began."""

_VIEW_DELAY_S = 0.02
"""On the way, and in this process's queue."""


DOUBT_PERIOD_S = 10.0
"""Between two snapshots that wrong predictions ask for."""

SNAPSHOT_TIMEOUT_S = 5.0
"""A snapshot that is not whole by then is asked for again."""


@dataclass(frozen=True, slots=True)
class Send:
    """A request on its way to an engine."""

    job: Job
    num_matching: int
    """Keys of the index that were expected there."""


@dataclass(slots=True, eq=False)
class Member:
    """One connected engine."""

    client: EngineClient
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    running: dict[str, Job] = field(default_factory=dict)
    num_running_samples: int = 0
    unseen: dict[Job, int] = field(default_factory=dict)
    """Uncached prompt tokens of submitted requests that the last load view may not show."""
    unconfirmed: dict[str, Send] = field(default_factory=dict)
    """Submitted requests whose prompts the engine may not have computed yet."""
    asked_s: float | None = None
    """When a snapshot was asked for last, or missed first."""
    doubted_s: float | None = None
    """When one was asked for last because of a wrong prediction."""
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

    def __init__(
        self,
        prefix_index_max_bytes: int,
        *,
        policy: Policy = choose,
        first_rotation: int | None = None,
    ) -> None:
        """``first_rotation``: where the turns of equal engines begin; random if not given, so that
        gateways that see the same tie don't all take the same engine.
        """
        self.index = PrefixIndex(prefix_index_max_bytes)
        self._policy = policy
        self._members: dict[str, Member] = {}
        if first_rotation is None:
            first_rotation = random.getrandbits(32)
        self._rotation = itertools.count(first_rotation)
        self._remainder = StrideRemainder(KEY_STRIDE)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    @property
    def num_answers_per_s(self) -> float | None:
        """Answers that all engines end per second while they are full; None while unknown."""
        rates = [
            member.client.card.max_num_seqs / member.client.load.mean_answer_s
            for member in self._members.values()
            if member.is_accepting and member.client.load.mean_answer_s > 0
        ]
        return sum(rates) or None

    def get(self, engine_id: str | None) -> Member | None:
        return None if engine_id is None else self._members.get(engine_id)

    def member_of(self, client: EngineClient) -> Member | None:
        """None for the connection before the present one, whose last words may come late."""
        member = self._members.get(client.card.engine_id)
        return member if member is not None and member.client is client else None

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
            self._ask_snapshot(member, now_s)
        elif self.index.is_behind(member.engine_id):
            if member.asked_s is None:
                member.asked_s = now_s
            elif now_s >= member.asked_s + SNAPSHOT_TIMEOUT_S:
                self._ask_snapshot(member, now_s)
        else:
            member.asked_s = None
        self._settle_sends(member, now_s)

    def see_snapshot(self, member: Member, snapshot: CacheSnapshot) -> None:
        """All that ``member`` holds, or a part of it."""
        if self.index.seed(member.engine_id, snapshot):
            member.asked_s = None
            member.client.request_snapshot()

    def count_send(self, member: Member, job: Job) -> None:
        """``job`` goes to ``member``: count its load and prefix before any event confirms them."""
        by_class = list(member.announced_demand)
        by_class[job.service_class] = max(0, by_class[job.service_class] - 1)
        member.announced_demand = (by_class[0], by_class[1], by_class[2])
        num_matching = self._num_matching(job).get(member.engine_id, 0)
        candidate = _candidate(member, self._expected_cached_tokens(member, job, num_matching))
        num_tokens = len(job.prompt.token_ids)
        # Of what was generated before, the engine does not count what it finds.
        job.predicted_cached_tokens = min(
            candidate.num_cached_tokens, num_tokens - job.num_generated
        )
        job.predicted_ttft_s = ttft_s(num_tokens, candidate)
        member.unseen[job] = num_tokens - candidate.num_cached_tokens
        member.unconfirmed[job.request_id] = Send(job, num_matching)
        self.index.count_send(member.engine_id, job.request_id, job.prompt.index_keys)

    def choose(self, job: Job, queue: WaitingQueue) -> Member | None:
        """Where ``job`` should go, if to any; to one that lost it only if there are no others."""
        fitting = [member for member in self._members.values() if member.fits(job)]
        fresh = [member for member in fitting if member.engine_id not in job.tried] or fitting
        if len(fresh) < 2:
            return fresh[0] if fresh else None
        matching = self._num_matching(job)
        candidates = [
            _waiting_candidate(
                member,
                self._expected_cached_tokens(member, job, matching.get(member.engine_id, 0)),
                job,
                queue,
            )
            for member in fresh
        ]
        request = RouteRequest(
            len(job.prompt.token_ids),
            service_class=job.service_class,
            affinity=job.affinity,
            current=job.engine_id,
            rotation=next(self._rotation),
        )
        return self._members[self._policy(request, candidates).candidate.engine_id]

    def _num_matching(self, job: Job) -> dict[str, int]:
        """By engine. A prompt whose log probabilities are asked for is computed whole."""
        if job.sampling.num_prompt_logprobs is not None:
            return {}
        return self.index.num_matching(job.prompt.index_keys)

    def _expected_cached_tokens(self, member: Member, job: Job, num_matching: int) -> int:
        if job.sampling.num_prompt_logprobs is not None:
            return 0
        num_blocks = len(job.prompt.block_keys)
        num_blocks_beyond = self._remainder.expected_blocks(num_matching, num_blocks)
        num_expected = num_matching * KEY_STRIDE + num_blocks_beyond
        num_cached = round(num_expected * member.client.card.block_size_tokens)
        # The last prompt token is always computed, or there would be nothing to sample from.
        return min(num_cached, len(job.prompt.token_ids) - 1)

    def _ask_snapshot(self, member: Member, now_s: float) -> None:
        member.asked_s = now_s
        member.client.request_snapshot()

    def _settle_sends(self, member: Member, now_s: float) -> None:
        """The engine has begun with some requests, others have ended: its events say what it holds.

        A prediction that its events do not explain means that they do not tell the truth: ask.
        """
        done = [
            send
            for send in member.unconfirmed.values()
            if send.job.has_begun or send.job.request_id not in member.running
        ]
        for send in done:
            job = send.job
            del member.unconfirmed[job.request_id]
            num_cached_blocks = _num_cached_blocks(member, job)
            if num_cached_blocks is not None:
                num_prompt_blocks = len(job.prompt.block_keys)
                self._remainder.learn(send.num_matching, num_prompt_blocks, num_cached_blocks)
            is_wrong = self.index.settle_send(
                member.engine_id,
                job.request_id,
                None if num_cached_blocks is None else num_cached_blocks // KEY_STRIDE,
            )
            is_due = member.doubted_s is None or now_s >= member.doubted_s + DOUBT_PERIOD_S
            if is_wrong and is_due:
                member.doubted_s = now_s
                self._ask_snapshot(member, now_s)


def _num_cached_blocks(member: Member, job: Job) -> int | None:
    """Found by the engine in its cache; None if it did not look or has not said so. Of an answer
    that goes on it says only what it found of the prompt.
    """
    is_known = job.num_cached_tokens is not None and job.request_id in member.running
    if not is_known or job.num_generated or job.sampling.num_prompt_logprobs is not None:
        return None
    assert job.num_cached_tokens is not None
    # Of a prompt that is cached whole the last token is computed, and not counted: round up.
    return -(-job.num_cached_tokens // member.client.card.block_size_tokens)


def _waiting_candidate(
    member: Member, num_cached_tokens: int, job: Job, queue: WaitingQueue
) -> Candidate:
    """What waits in this gateway counts if it goes first; of others only the sums are known."""
    lane = queue.lane(member.engine_id)
    num_before = bisect_left(lane.jobs, job.order, key=attrgetter("order"))
    num_others = len(lane.jobs) - (job.engine_id == member.engine_id)
    num_samples, num_tokens = lane.num_samples, lane.num_tokens
    if num_others < len(lane.jobs):  # it need not wait for itself
        num_samples -= job.num_samples
        num_tokens -= len(job.prompt.token_ids)
    share = num_before / num_others if num_others else 0.0
    return _candidate(
        member,
        num_cached_tokens,
        num_queued=round(share * num_samples),
        num_queued_tokens=round(share * num_tokens),
    )


def _candidate(
    member: Member, num_cached_tokens: int, *, num_queued: int = 0, num_queued_tokens: int = 0
) -> Candidate:
    card = member.client.card
    return Candidate(
        engine_id=member.engine_id,
        load=member.client.load,
        block_size_tokens=card.block_size_tokens,
        held=HeldPrefix(num_cached_tokens, num_cached_tokens, num_cached_tokens),
        num_in_flight=member.num_running_samples + num_queued,
        num_unseen=sum(unseen.num_samples for unseen in member.unseen) + num_queued,
        num_unseen_tokens=sum(member.unseen.values()),
        num_queued_tokens=num_queued_tokens,
        max_num_seqs=card.max_num_seqs,
    )
