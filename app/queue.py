"""Requests that wait for an engine, each under the engine that the router chose for it.

They stand in the order of their arrival plus their class's delay: "oldest" means by that here.

A data structure only: no clock, no router, no engines.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from typing import Protocol

from app.errors import ApiError
from app.pools import Pool
from app.text.tokenization import Prompt
from app.transfers import ExpectedTransfer
from cache_tiers.messages import PeerAddress
from engine.messages import (
    EngineRequest,
    RestoredTokens,
    SamplingParams,
    ServiceClass,
    TimelineEvent,
    TokenDelta,
)


class Answer(Protocol):
    """Where a request's result goes."""

    @property
    def is_missing_text(self) -> bool:
        """Tokens that are still to come may change the text."""
        ...

    @property
    def can_restart(self) -> bool:
        """Something is still missing, and nothing of it was shown to the client."""
        ...

    def restart(self) -> None:
        """Another engine starts over: forget all deltas."""
        ...

    def on_delta(self, delta: TokenDelta) -> None:
        """Those of a sample in order; its last one has a finish reason."""
        ...

    def fail(self, error: ApiError) -> None:
        """The request ended without last deltas."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """One prompt from its arrival to its last token. Only the dispatcher writes it."""

    request_id: str
    prompt: Prompt
    """Its last ``num_generated`` tokens are the answer so far, if an engine was lost amid it."""
    sampling: SamplingParams
    answer: Answer
    arrived_s: float
    deadline_s: float
    """When the whole request must have ended."""
    num_samples: int = 1
    service_class: ServiceClass = ServiceClass.STANDARD
    pool: Pool = Pool.SHARED
    """Decided when it arrived."""
    affinity: int | None = None
    """As ``app.routing.candidate.RouteRequest`` has it."""
    session_kind: str = ""
    """For ``EngineRequest``, as the next one."""
    expected_return_s: float | None = None
    queued_s: float = 0.0
    """When the wait began that it is in, or was in last."""
    submitted_s: float | None = None
    """When that wait ended; None while it lasts."""
    engine_id: str | None = None
    """Chosen while it waits, given while it runs; None while no engine is there."""
    is_running: bool = False
    is_cancelled: bool = False
    has_begun: bool = False
    """While it runs: the engine has said something of it."""
    num_open_samples: int = 0
    """While it runs: those that have not had their last delta."""
    loss: str | None = None
    """Why it starts over elsewhere once all its samples have ended."""
    new_token_ids: list[int] = field(default_factory=list)
    """Of the only sample, while it runs: what its engine has generated."""
    num_generated: int = 0
    """Tokens that engines before this one had generated."""
    num_attempts: int = 0
    """Submissions."""
    num_moves: int = 0
    """Times that an engine gave it up unharmed."""
    is_moving: bool = False
    """Its engine just did: ``loss`` is no failure."""
    is_seed: bool = False
    """Ours, to bring a prefix to an engine: nobody asked for it, nobody pays."""
    first_token_s: float | None = None
    """When the first token came, whichever engine said it."""
    last_token_s: float = 0.0
    num_answer_tokens: int = 0
    """Of all samples, since it began or started over."""
    tried: set[str] = field(default_factory=set)
    """Engines that lost it."""
    timeline: list[TimelineEvent] = field(default_factory=list)
    """What happened to it in the gateway, for ``EngineRequest.timeline`` and ``/debug``."""
    num_cached_tokens: int | None = None
    """As the engine that runs it counted them; None before its first delta."""
    restored: RestoredTokens | None = None
    """Of these, what came from outside of its accelerator."""
    predicted_cached_tokens: int | None = None
    """What the router expected the engine it was sent to last to find: in its prefix cache, and by
    the transfer.
    """
    expected_transfer: ExpectedTransfer | None = None
    """From the source that was chosen at that submission."""
    peer_id: str | None = None
    """Whose node it was to be pulled from."""
    predicted_ttft_s: float | None = None
    """From that submission to the first token, as the router expected it."""

    @property
    def num_request_tokens(self) -> int:
        """Of the prompt and the longest answer that was asked for, together."""
        num_prompt_tokens = len(self.prompt.token_ids) - self.num_generated
        return num_prompt_tokens + self.sampling.max_tokens

    @property
    def is_resumable(self) -> bool:
        """Another engine can go on where this one is lost."""
        return self.num_samples == 1 and bool(self.num_generated or self.new_token_ids)

    @property
    def num_failures(self) -> int:
        """Submissions that were lost, once it does not run."""
        return self.num_attempts - self.num_moves

    @property
    def num_retries(self) -> int:
        """Submissions after a loss."""
        return max(0, self.num_attempts - self.num_moves - 1)

    def keep_generated(self, block_size_tokens: int) -> None:
        """What was generated becomes what the next engine begins with."""
        self.prompt = self.prompt.extended(self.new_token_ids, block_size_tokens)
        self.num_generated += len(self.new_token_ids)
        self.new_token_ids = []

    def engine_request(self, now_s: float, peer: PeerAddress | None) -> EngineRequest:
        """As it goes to an engine at ``now_s``, which may pull from ``peer``."""
        return EngineRequest(
            request_id=self.request_id,
            token_ids=self.prompt.token_ids,
            root_key=self.prompt.root_key,
            block_keys=self.prompt.block_keys,
            sampling=self.sampling,
            timeout_s=max(0.001, self.deadline_s - now_s),
            num_samples=self.num_samples,
            service_class=self.service_class,
            age_s=max(0.0, now_s - self.arrived_s),
            num_generated_tokens=self.num_generated,
            timeline=list(self.timeline),
            peer=peer,
            session_kind=self.session_kind,
            expected_return_s=self.expected_return_s,
        )

    @property
    def order(self) -> tuple[float, str]:
        """By virtual arrival; it never changes, so that nobody waits for ever."""
        return (self.arrived_s + self.service_class.delay_s, self.request_id)


def _order(job: Job) -> tuple[float, str]:
    return job.order


@dataclass(slots=True, eq=False)
class Lane:
    """The jobs that wait for one engine, and their sums."""

    jobs: list[Job] = field(default_factory=list)
    """Oldest first."""
    num_samples: int = 0
    num_tokens: int = 0
    """Of their prompts."""
    num_by_class: list[int] = field(default_factory=lambda: [0] * len(ServiceClass))
    """Jobs per ``ServiceClass``."""
    num_samples_by_pool: dict[Pool, int] = field(default_factory=lambda: dict.fromkeys(Pool, 0))


_EMPTY = Lane()


class WaitingQueue:
    """All waiting jobs of one model."""

    def __init__(self) -> None:
        self._lanes: dict[str | None, Lane] = {}
        self._len = 0

    @property
    def num_by_class(self) -> list[int]:
        """Jobs per ``ServiceClass``, in all lanes."""
        sums = [lane.num_by_class for lane in self._lanes.values()]
        return [sum(numbers) for numbers in zip(*sums, strict=True)] or [0] * len(ServiceClass)

    @property
    def num_tokens(self) -> int:
        """Of all prompts."""
        return sum(lane.num_tokens for lane in self._lanes.values())

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Job]:
        """All jobs as they are now, by engine; the queue may change meanwhile."""
        return iter([job for lane in self._lanes.values() for job in lane.jobs])

    def lane(self, engine_id: str | None) -> Lane:
        """What waits for the engine; to read."""
        return self._lanes.get(engine_id, _EMPTY)

    def waiting_for(self, engine_id: str | None) -> list[Job]:
        """As they are now, oldest first; the queue may change meanwhile."""
        return list(self.lane(engine_id).jobs)

    def num_stranded(self, pool: Pool) -> int:
        """Samples of ``pool`` for which no engine has a place."""
        return self.lane(None).num_samples_by_pool[pool]

    def stranded(self, pool: Pool, num_jobs: int) -> list[Job]:
        """Up to ``num_jobs`` jobs of ``pool`` for which no engine has a place, oldest first."""
        waiting = (job for job in self.lane(None).jobs if job.pool is pool)
        return list(islice(waiting, num_jobs))

    def add(self, job: Job) -> None:
        """Put ``job`` under ``job.engine_id``, in its order."""
        lane = self._lanes.setdefault(job.engine_id, Lane())
        insort(lane.jobs, job, key=_order)
        lane.num_by_class[job.service_class] += 1
        lane.num_samples += job.num_samples
        lane.num_samples_by_pool[job.pool] += job.num_samples
        lane.num_tokens += len(job.prompt.token_ids)
        self._len += 1

    def remove(self, job: Job) -> None:
        """Precondition: ``job`` waits here."""
        lane = self._lanes[job.engine_id]
        lane.jobs.remove(job)
        lane.num_by_class[job.service_class] -= 1
        lane.num_samples -= job.num_samples
        lane.num_samples_by_pool[job.pool] -= job.num_samples
        lane.num_tokens -= len(job.prompt.token_ids)
        self._len -= 1
        if not lane.jobs:
            del self._lanes[job.engine_id]

    def move(self, job: Job, engine_id: str | None) -> None:
        """Put ``job`` under another engine; it keeps its age."""
        self.remove(job)
        job.engine_id = engine_id
        self.add(job)

    def pop_for(
        self, engine_id: str, *, urgent_before_s: float, fits: Callable[[Job], bool]
    ) -> Job | None:
        """The job that a credit of ``engine_id`` lets go.

        The oldest one for that engine; but one whose wait began before ``urgent_before_s`` goes
        first, whichever engine it was meant for, if it ``fits`` this one.
        """
        heads = [lane.jobs[0] for lane in self._lanes.values()]
        urgent = [job for job in heads if job.queued_s <= urgent_before_s and fits(job)]
        own = self._lanes.get(engine_id)
        job = min(urgent, key=_order) if urgent else own.jobs[0] if own else None
        if job is not None:
            self.remove(job)
        return job

    def num_before(self, virtual_arrival_s: float) -> int:
        """Jobs that one with that virtual arrival would have to let go first."""
        key = (virtual_arrival_s, "")
        return sum(bisect_left(lane.jobs, key, key=_order) for lane in self._lanes.values())

    def last_below(self, service_class: ServiceClass, num_jobs: int) -> list[Job]:
        """Up to ``num_jobs`` jobs of lower classes that go last, the very last one first.

        None that was at an engine: its client may have seen a part of the answer.
        """
        lower = (job for job in self if job.service_class > service_class and job.num_attempts == 0)
        return nlargest(num_jobs, lower, key=_order)

    def oldest(self, num_jobs: int) -> list[Job]:
        """Up to ``num_jobs`` jobs, oldest first."""
        return sorted(self, key=_order)[:num_jobs]

    def check_integrity(self) -> None:
        """Lanes are in order and agree with the sums. For tests."""
        assert self._len == sum(len(lane.jobs) for lane in self._lanes.values())
        for engine_id, lane in self._lanes.items():
            assert lane.jobs == sorted(lane.jobs, key=_order)
            assert all(job.engine_id == engine_id for job in lane.jobs)
            classes = [job.service_class for job in lane.jobs]
            assert lane.num_by_class == [classes.count(kind) for kind in ServiceClass]
            assert lane.num_samples == sum(job.num_samples for job in lane.jobs)
            assert lane.num_samples == sum(lane.num_samples_by_pool.values())
            for pool, num_samples in lane.num_samples_by_pool.items():
                assert num_samples == sum(j.num_samples for j in lane.jobs if j.pool is pool)
            assert lane.num_tokens == sum(len(job.prompt.token_ids) for job in lane.jobs)
