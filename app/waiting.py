"""Where the requests of one model wait: for which engine, until when, and who goes next.

Owns the waiting queue and its timer; one event loop. Must not know what becomes of a request that
has left.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from app.config import GatewayConfig
from app.demand_meter import Waiting
from app.drain_meter import DrainMeter
from app.errors import ApiError, RequestTimeoutError, WeightsReplacedError
from app.fleet import Fleet
from app.member import Member
from app.pools import Pool
from app.queue import Job, WaitingQueue
from app.readiness import Readiness
from app.wait_estimate import drain_s
from engine.messages import ServiceClass, TimelineEvent

TICK_S = 0.05
"""How often waiting requests are looked at again."""

WEIGHTS_GONE_S = 1.0
"""Who was made for other weights than those of all engines waits so long: a connection that broke
is back by then.
"""

MAX_RECHOSEN_PER_TICK = 32
"""Oldest first; bounds the work of a tick, whatever the length of the queue."""


class ClassQueue(NamedTuple):
    """What waits of one class."""

    depth: int
    oldest_age_s: float
    """Since its wait began; 0 if nothing waits."""
    estimated_wait_s: float
    """Of a request that came now."""


class WaitingRoom:
    """Jobs come by ``add`` and go by ``remove`` or by one of the callbacks."""

    def __init__(
        self,
        model: str,
        fleet: Fleet,
        readiness: Readiness,
        config: GatewayConfig,
        clock: Callable[[], float],
        *,
        submit: Callable[[Member, Job], None],
        give_up: Callable[[Job, ApiError], None],
    ) -> None:
        """``submit`` uses a credit of the member for a job that has just left; ``give_up`` hears of
        one that waited in vain.
        """
        self._model = model
        self._fleet = fleet
        self._readiness = readiness
        self._config = config
        self._clock = clock
        self._submit = submit
        self._give_up_job = give_up
        self._queue = WaitingQueue()
        self._drain = DrainMeter()
        self._tick_handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Job]:
        """All jobs as they are now; some may leave meanwhile."""
        return iter(self._queue)

    def now(self) -> Waiting:
        """What waits, for the autoscaler."""
        now_s = self._clock()
        oldest_s = min((job.queued_s for job in self._queue), default=now_s)
        return Waiting(len(self._queue), self._queue.num_tokens, now_s - oldest_s)

    def by_class(self) -> list[ClassQueue]:
        """What waits of each ``ServiceClass``, for operators."""
        now_s = self._clock()
        oldest_s = [now_s] * len(ServiceClass)
        for job in self._queue:
            oldest_s[job.service_class] = min(oldest_s[job.service_class], job.queued_s)
        return [
            ClassQueue(
                depth=num_jobs,
                oldest_age_s=now_s - oldest_s[service_class],
                estimated_wait_s=self.estimated_wait_s(service_class),
            )
            for service_class, num_jobs in zip(ServiceClass, self._queue.num_by_class, strict=True)
        ]

    def estimated_wait_s(self, service_class: ServiceClass) -> float:
        """Until a request that came now would reach an engine.

        What stands before it, by the rate at which waiting requests left lately; as long as none
        did, by the rate at which full engines end answers; faster from when another replica is
        promised for. And until there is an engine.
        """
        now_s = self._clock()
        absence_s = self._readiness.estimated_wait_s
        num_before = self._queue.num_before(now_s + service_class.delay_s)
        if num_before == 0:
            return absence_s
        return absence_s + drain_s(
            num_before + 1,
            self._drain.rate_per_s(now_s) or self._fleet.num_answers_per_s,
            num_engines=self._fleet.num_accepting,
            next_ready_s=self._readiness.next_ready_s,
        )

    def max_wait_s(self, service_class: ServiceClass) -> float:
        """Longer by as much as others may overtake it."""
        return self._config.max_queue_wait_s + service_class.delay_s

    def last_below(self, service_class: ServiceClass, num_jobs: int) -> list[Job]:
        """As ``WaitingQueue.last_below``."""
        return self._queue.last_below(service_class, num_jobs)

    def reconfigure(self, config: GatewayConfig) -> None:
        """New limits, for those that wait already, too."""
        self._config = config

    def add(self, job: Job) -> None:
        """``job`` waits from now on, and goes at once if its engine has a credit."""
        job.queued_s = self._clock()
        job.submitted_s = None
        job.timeline.append(TimelineEvent("queued", job.queued_s - job.arrived_s))
        job.engine_id = None
        job.pool = self._fleet.pool_of(job)
        # Nobody of a pool goes before those that wait for its next place.
        is_full = job.pool is not Pool.SHARED and self._queue.num_stranded(job.pool) > 0
        member = None if is_full else self._fleet.choose(job, self._queue)
        job.engine_id = None if member is None else member.engine_id
        self._queue.add(job)
        if member is not None:
            self.use_credits(member)
        self._drain.set_waiting(job.queued_s, is_waiting=len(self._queue) > 0)
        self._tick_later()

    def remove(self, job: Job) -> None:
        """``job`` waits no more. Precondition: it does."""
        self._queue.remove(job)
        self._drain.set_waiting(self._clock(), is_waiting=len(self._queue) > 0)
        self.announce(self._fleet.get(job.engine_id))

    def give_up(self, job: Job, error: ApiError) -> None:
        """``job`` waited in vain, unless its answer has failed meanwhile by another prompt's."""
        if not job.is_cancelled:
            self.remove(job)
            self._give_up_job(job, error)

    def rechoose(self, engine_id: str | None) -> None:
        """Choose again for those that wait for ``engine_id``, or for any engine."""
        self._rechoose(self._queue.waiting_for(engine_id))

    def use_credits(self, member: Member) -> None:
        """Let go whom the credits of ``member`` allow, and tell it who still waits."""
        now_s = self._clock()
        urgent_before_s = now_s - self._config.max_queue_wait_s / 2
        while member.is_accepting and member.client.num_credits > 0:
            job = self._queue.pop_for(
                member.engine_id,
                urgent_before_s=urgent_before_s,
                fits=partial(self._fleet.may_take, member, queue=self._queue),
            )
            if job is None:
                break
            if job.queued_s < now_s:
                self._drain.departed(now_s)
            meant_for = self._fleet.get(job.engine_id)
            self._submit(member, job)
            if meant_for is not member:
                self.announce(meant_for)
        self._drain.set_waiting(now_s, is_waiting=len(self._queue) > 0)
        self.announce(member)

    def close(self, error: ApiError) -> None:
        """All that wait have waited in vain."""
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        for job in self._queue:
            self.give_up(job, error)

    def check_integrity(self) -> None:
        """For tests."""
        self._queue.check_integrity()

    def _rechoose(self, jobs: Iterable[Job]) -> None:
        changed: set[str] = set()
        for job in jobs:
            member = self._fleet.choose(job, self._queue)
            engine_id = None if member is None else member.engine_id
            if engine_id != job.engine_id:
                changed.update(id_ for id_ in (engine_id, job.engine_id) if id_ is not None)
                self._queue.move(job, engine_id)
        for engine_id in changed:
            member = self._fleet.get(engine_id)
            if member is not None:
                self.use_credits(member)

    def announce(self, member: Member | None) -> None:
        """Tell it who waits for it, if it is news."""
        if member is not None:
            interactive, standard, batch = self._queue.lane(member.engine_id).num_by_class
            member.announce_demand((interactive, standard, batch))

    def _timeout_error(self, waited_s: float) -> ApiError:
        if self._readiness.card is None:
            return self._readiness.loading_error()
        return RequestTimeoutError(f"No replica had room within {waited_s:.1f} s.")

    def _limit_s(self, job: Job) -> float:
        """Until when it may wait: one that its engine gave up, as long as any answer may take."""
        if job.num_moves:
            return job.deadline_s
        return min(job.queued_s + self.max_wait_s(job.service_class), job.deadline_s)

    def _tick_later(self) -> None:
        if self._tick_handle is None and len(self._queue):
            self._tick_handle = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._tick_handle = None
        now_s = self._clock()
        for job in self._queue:
            if now_s >= self._limit_s(job):
                self.give_up(job, self._timeout_error(now_s - job.queued_s))
        root_keys = self._fleet.root_keys
        if root_keys:
            for job in self._queue.waiting_for(None):
                is_outdated = job.prompt.card_root_key not in root_keys
                if is_outdated and now_s >= job.queued_s + WEIGHTS_GONE_S:
                    self.give_up(job, WeightsReplacedError(self._model))
        self._rechoose(self._queue.oldest(MAX_RECHOSEN_PER_TICK))
        for pool in self._fleet.pools.of_their_own:
            self._rechoose(self._queue.stranded(pool, MAX_RECHOSEN_PER_TICK))
        self._tick_later()
