"""Brings each request of one model to an engine, and what the engine says to its answer.

Owns every open job: those that wait stand in ``app.waiting``, the others are ``app.running``'s. One
event loop. Must not know HTTP or text.
"""

import time
from collections.abc import Callable

from app.admission import Admission
from app.autoscaling_messages import ModelDemand
from app.config import GatewayConfig
from app.demand_meter import DemandMeter
from app.engines import Engines
from app.errors import ApiError, EngineError, OverloadedError
from app.fleet import Fleet
from app.member import Member
from app.queue import Job
from app.readiness import MAX_CONNECTING_S, Readiness
from app.routing.candidate import Policy
from app.routing.policy import choose
from app.running import RunningRequests
from app.scale_orders import LastOrders
from app.seeder import Seeder
from app.waiting import ClassQueue, WaitingRoom
from engine.messages import ModelCard

MAX_ATTEMPTS = 3
"""Engines that may lose one request before it fails: one that kills engines must not kill all."""

MAX_MOVES = 64
"""Times that engines may give one request up: far more than leave or go to sleep amid one answer,
while one that gives up all that comes would be asked for ever.
"""

_REFUSALS = (503, 504)
"""Statuses of requests that there was no engine or no room for."""


class Dispatcher:
    """The requests of one model."""

    def __init__(
        self,
        model: str,
        config: GatewayConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_connecting_s: float = MAX_CONNECTING_S,
        policy: Policy = choose,
        first_rotation: int | None = None,
        rank: int = 0,
    ) -> None:
        """``first_rotation`` and ``rank``: see ``Fleet``."""
        self.model = model
        self._config = config
        self.fleet = Fleet(
            config.prefix_index_max_bytes,
            clock=clock,
            pools=config.pools,
            policy=policy,
            first_rotation=first_rotation,
            rank=rank,
        )
        self.orders = LastOrders(clock)
        self.demand_meter = DemandMeter(clock)
        self.readiness = Readiness(
            model, self.fleet, self.orders, clock, max_connecting_s=max_connecting_s
        )
        self._running = RunningRequests(
            self.fleet,
            self.demand_meter,
            clock,
            go_on=self._go_on,
            done=self._done,
            left=self._left,
        )
        self._waiting = WaitingRoom(
            model,
            self.fleet,
            self.readiness,
            config,
            clock,
            submit=self._running.submit,
            give_up=self._fail,
        )
        self.seeder = Seeder(
            self.fleet,
            clock,
            submit=self._submit_seed,
            announce=self._waiting.announce,
            counted=self._count_in,
            oldest_wait_s=lambda: self._waiting.now().oldest_wait_s,
        )
        self.engines = Engines(self.fleet, self.readiness, self._waiting, self.seeder, self.orders)
        self._rank = rank
        self._admission = Admission(model, config, self.readiness, self._waiting)
        self._jobs: dict[str, Job] = {}
        self._is_closed = False
        self._share_seeds()

    @property
    def cells_per_gateway(self) -> int | None:
        """As ``GatewayConfig`` has it now."""
        return self._config.cells_per_gateway

    @property
    def card(self) -> ModelCard | None:
        """As ``Readiness.card``."""
        return self.readiness.card

    async def ready_card(self) -> ModelCard:
        """As ``Readiness.ready_card``, for as long as requests may wait."""
        return await self.readiness.ready_card(self._config.max_queue_wait_s)

    async def card_for_answer(self) -> ModelCard:
        """The same for a request that an engine is to answer: it counts as demand."""
        with self.demand_meter.waiting_unread():
            return await self.ready_card()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return sum(len(member.running) for member in self.fleet)

    # What the gateway asks.

    def reconfigure(self, config: GatewayConfig) -> None:
        """New limits, for those that wait already, too."""
        self._config = config
        self._waiting.reconfigure(config)
        self._admission.reconfigure(config)
        self.fleet.reconfigure(config.prefix_index_max_bytes, config.pools)
        self._share_seeds()
        self._waiting.rechoose(None)  # those of a pool that there is no more

    def enqueue(self, *jobs: Job) -> None:
        """Take all ``jobs`` or none; their answers hear everything from here on.

        Raises as ``Admission.admit``.
        """
        self.demand_meter.arrived(jobs)
        try:
            self._admission.admit(jobs)
        except ApiError:
            self.demand_meter.refused(len(jobs))
            raise
        for job in jobs:
            self._jobs[job.request_id] = job
            self._waiting.add(job)

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        """End a running request, or one sample of it; its answer still gets the last deltas.

        Unknown ids are ignored.
        """
        job = self._jobs.get(request_id)
        if job is not None and job.is_running:
            member = self.fleet.get(job.engine_id)
            if member is not None:
                member.client.abort(request_id, num_kept_tokens, index)

    def cancel(self, request_id: str) -> bool:
        """Nobody wants the answer any more: leave the queue, or stop the engine.

        Returns whether an engine has yet to say its last word. Unknown ids are ignored.
        """
        job = self._jobs.get(request_id)
        if job is None:
            return False
        if job.is_running:
            if not job.is_cancelled:
                job.is_cancelled = True
                job.loss = None
                self.abort(request_id)
            return True
        job.is_cancelled = True
        self._waiting.remove(job)
        del self._jobs[request_id]
        return False

    def open_job(self, request_id: str) -> Job | None:
        """The request that waits or runs under that id, for operators to look at."""
        return self._jobs.get(request_id)

    def check_integrity(self) -> None:
        """Every open job waits or runs, in one place. For tests."""
        self._waiting.check_integrity()
        self.fleet.index.check_integrity()
        running = [job for member in self.fleet for job in member.running.values()]
        assert all(job.is_running for job in running)
        for member in self.fleet:
            member.check_integrity()
        assert not any(job.is_running for job in self._waiting)
        waiting_ids = [job.request_id for job in self._waiting]
        assert sorted(waiting_ids + [job.request_id for job in running]) == sorted(self._jobs)

    def queues(self) -> list[ClassQueue]:
        """What waits, per ``ServiceClass``."""
        return self._waiting.by_class()

    def demand(self) -> ModelDemand:
        """What the autoscaler is to know."""
        return self.demand_meter.demand(
            self.model, self._waiting.now(), [member.seen() for member in self.fleet]
        )

    async def close(self) -> None:
        """Close every connection; open requests end with an error."""
        self._is_closed = True
        self.seeder.close()
        self._waiting.close(OverloadedError("The gateway is shutting down. Try again."))
        await self.engines.close()

    def _share_seeds(self) -> None:
        """One gateway does for all; with cells none is connected to all engines."""
        is_first = self._rank == 0
        self.seeder.submits = is_first or (self._rank > 0 and self.cells_per_gateway is not None)

    def _count_in(self) -> None:
        self.engines.count_in()

    # Running.

    def _submit_seed(self, member: Member, job: Job) -> None:
        self._jobs[job.request_id] = job
        self._running.submit(member, job)

    def _go_on(self, job: Job) -> None:
        """``job`` is to begin or to go on at another engine, after ``job.loss``."""
        if self._is_closed:
            self._fail(job, OverloadedError("The gateway is shutting down. Try again."))
        elif job.num_failures >= MAX_ATTEMPTS:
            message = f"{job.num_failures} replicas failed; the last: {job.loss}"
            self._fail(job, EngineError(message))
        elif job.num_moves > MAX_MOVES:
            self._fail(job, EngineError(f"it was moved {MAX_MOVES} times and did not end"))
        else:
            self._waiting.add(job)

    def _done(self, job: Job) -> None:
        del self._jobs[job.request_id]
        if not job.is_seed:
            self.demand_meter.ended(job)

    def _left(self, member: Member) -> None:
        self.engines.close_if_done(member)

    def _fail(self, job: Job, error: ApiError) -> None:
        del self._jobs[job.request_id]
        if job.first_token_s is None and error.status in _REFUSALS:
            self.demand_meter.refused(1)
        else:
            self.demand_meter.ended(job)
        job.answer.fail(error)
