"""One connected engine of a fleet: what runs there, and what is on its way.

Knows its client; must not know the other engines, nor how one is chosen.
"""

import asyncio
from dataclasses import dataclass, field

from app.autoscaling_messages import EngineSeen
from app.client import EngineClient
from app.pools import Pool
from app.queue import Job
from cache_tiers.rung import Rung
from engine.messages import LOAD_PERIOD_S
from engine.rung_messages import RungOrder

_VIEW_AGE_STEPS = 1.5
"""A view is made at the end of a step, of what was there when it began."""

_MAX_STEPS_S = 10.0
"""An engine whose clock jumped may say any step time."""

_VIEW_DELAY_S = 0.02
"""On the way, and in this process's queue."""


@dataclass(frozen=True, slots=True)
class Send:
    """A request on its way to an engine."""

    job: Job
    num_matching: int
    """Keys of the index that were expected there."""


@dataclass(slots=True, eq=False)
class Member:
    """What this gateway knows of one engine beside its prefixes."""

    client: EngineClient
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    running: dict[str, Job] = field(default_factory=dict)
    num_running_samples: int = 0
    num_running_by_pool: dict[Pool, int] = field(default_factory=lambda: dict.fromkeys(Pool, 0))
    """The same samples."""
    routed: dict[str, Job] = field(default_factory=dict)
    """What others were told to send here, and probably still runs (``app.router``)."""
    num_routed_samples: int = 0
    unseen: dict[Job, int] = field(default_factory=dict)
    """Uncached prompt tokens of submitted requests that the last load view may not show."""
    num_unseen_samples: int = 0
    num_unseen_tokens: int = 0
    unconfirmed: dict[str, Send] = field(default_factory=dict)
    """Submitted requests whose prompts the engine may not have computed yet."""
    seen_s: float | None = None
    """When the last load view came."""
    asked_s: float | None = None
    """When a snapshot was asked for last, or missed first."""
    doubted_s: float | None = None
    """When one was asked for last because of a wrong prediction."""
    announced_demand: tuple[int, int, int] = (0, 0, 0)
    """As the engine counts: each submit takes one off (``engine.messages.Demand``)."""
    is_retiring: bool = False
    """Not a member of the fleet any more: closed when its last request ended."""
    is_seeded: bool = True
    """The router counts it: until then it gets nothing but seeds (``app.seeder``)."""
    is_awake: bool = True
    """As it said last: it stands on SERVING and does not move."""
    num_seeds_waiting: int = 0
    """Of ``app.seeder``, beside the requests that wait for it."""
    told_rung: Rung | None = None
    """What it was ordered last over this connection."""
    told_successor: bool = True
    """What it was told last, or believes without: others could go on with what runs there."""

    @property
    def engine_id(self) -> str:
        return self.client.card.engine_id

    @property
    def is_accepting(self) -> bool:
        return self.client.is_accepting and not self.is_retiring

    @property
    def is_leaving(self) -> bool:
        """Serve stops it, or does not name it any more."""
        return self.client.is_draining or self.is_retiring

    @property
    def heading_rung(self) -> Rung:
        """Where it stands, or will when it has moved."""
        state = self.client.rung_state
        if not state.is_moving:
            return state.rung
        return Rung.PARKED if state.rung is Rung.SERVING else Rung.SERVING

    def obey(self, order: RungOrder | None) -> None:
        """Pass ``order`` on if it is news, or if the engine heads elsewhere."""
        if order is None or self.is_leaving:
            return
        if order.rung is not self.told_rung or order.rung is not self.heading_rung:
            self.told_rung = order.rung
            self.client.set_rung(order)

    def tell_successor(self, *, exists: bool) -> None:
        """If it is news."""
        if exists is not self.told_successor:
            self.told_successor = exists
            self.client.set_successor(exists=exists)

    def seen(self) -> EngineSeen:
        """What the autoscaler is told of it."""
        card, state = self.client.card, self.client.rung_state
        return EngineSeen(
            engine_id=self.engine_id,
            node_id=card.node_id,
            rung=state.rung,
            is_moving=state.is_moving,
            is_draining=self.is_leaving,
            is_seeded=self.is_seeded,
            max_num_seqs=card.max_num_seqs,
            load=self.client.load,
            wake_s=state.wake_s,
            sleep_s=state.sleep_s,
            started_from=card.started_from,
            start_s=card.start_s,
        )

    def fits(self, job: Job) -> bool:
        """Another root key means other weights: the prompt was made for another model. And a
        smaller KV pool would cut the answer, or refuse the prompt.
        """
        card = self.client.card
        return (
            self.is_accepting
            and self.is_seeded
            and card.root_key == job.prompt.card_root_key
            and job.num_request_tokens <= card.max_request_tokens
        )

    @property
    def num_in_flight(self) -> int:
        """Samples that this gateway sent here, or had sent here."""
        return self.num_running_samples + self.num_routed_samples

    def has(self, job: Job) -> bool:
        """Whether it was sent here and has not ended."""
        return job.request_id in self.running or job.request_id in self.routed

    def begin(self, job: Job) -> None:
        """``job`` runs here from now on."""
        self.running[job.request_id] = job
        self._count_samples(job, job.num_samples)

    def end_samples(self, job: Job, num_ended: int) -> None:
        """So many of its samples had their last delta; with the last one it leaves."""
        job.num_open_samples -= num_ended
        self._count_samples(job, -num_ended)
        if job.num_open_samples == 0:
            del self.running[job.request_id]

    def begin_routed(self, job: Job) -> None:
        """Somebody else sends ``job`` here."""
        self.routed[job.request_id] = job
        self.num_routed_samples += job.num_samples

    def end_routed(self, job: Job) -> None:
        """By now its answer has probably ended."""
        del self.routed[job.request_id]
        self.num_routed_samples -= job.num_samples
        num_tokens = self.unseen.pop(job, None)
        if num_tokens is not None:
            self.num_unseen_samples -= job.num_samples
            self.num_unseen_tokens -= num_tokens

    def count_unseen(self, job: Job, num_uncached_tokens: int) -> None:
        """``job`` was submitted, perhaps once more: the next load view may not show it yet."""
        num_before = self.unseen.get(job)
        if num_before is None:
            self.num_unseen_samples += job.num_samples
        self.num_unseen_tokens += num_uncached_tokens - (num_before or 0)
        self.unseen[job] = num_uncached_tokens

    def view_age_s(self, now_s: float) -> float:
        """How old what the load view shows is; of a view that just came, if not 0 either.

        An engine that does nothing says nothing, and as soon as it does, within a period.
        """
        since_s = LOAD_PERIOD_S if self.seen_s is None else now_s - self.seen_s
        return min(max(0.0, since_s), LOAD_PERIOD_S) + self._view_lag_s

    def see_load(self, now_s: float) -> None:
        """The client's load view is new: it shows what the engine has begun with, and what was
        submitted before the step began.
        """
        self.seen_s = now_s
        shown_s = now_s - self._view_lag_s
        self.unseen = {
            job: num_tokens
            for job, num_tokens in self.unseen.items()
            if self.has(job)
            and not job.has_begun
            and job.submitted_s is not None
            and job.submitted_s > shown_s
        }
        self.num_unseen_samples = sum(job.num_samples for job in self.unseen)
        self.num_unseen_tokens = sum(self.unseen.values())

    def announce_demand(self, num_waiting: tuple[int, int, int]) -> None:
        """Say so to the engine, if it is news; seeds wait, too."""
        interactive, standard, batch = num_waiting
        num_waiting = interactive, standard, batch + self.num_seeds_waiting
        if num_waiting != self.announced_demand and self.client.is_accepting:
            self.announced_demand = num_waiting
            self.client.set_demand(num_waiting)

    def count_submit(self, job: Job) -> None:
        """The engine takes one off what was announced."""
        by_class = list(self.announced_demand)
        by_class[job.service_class] = max(0, by_class[job.service_class] - 1)
        self.announced_demand = (by_class[0], by_class[1], by_class[2])

    def check_integrity(self) -> None:
        """For tests."""
        jobs = self.running.values()
        assert self.num_running_samples == sum(job.num_open_samples for job in jobs)
        for pool, num_samples in self.num_running_by_pool.items():
            assert num_samples == sum(job.num_open_samples for job in jobs if job.pool is pool)
        assert self.num_routed_samples == sum(job.num_samples for job in self.routed.values())
        assert self.num_unseen_samples == sum(job.num_samples for job in self.unseen)
        assert self.num_unseen_tokens == sum(self.unseen.values())

    def _count_samples(self, job: Job, num_samples: int) -> None:
        self.num_running_samples += num_samples
        self.num_running_by_pool[job.pool] += num_samples

    @property
    def _view_lag_s(self) -> float:
        steps_s = min(_VIEW_AGE_STEPS * self.client.load.step_time_s, _MAX_STEPS_S)
        return steps_s + _VIEW_DELAY_S
