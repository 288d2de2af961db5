"""Brings each request of one model to an engine, and what the engine says to its answer.

A request whose engine is lost goes on where it was, on another one; one of several samples starts
over, if nothing of it was shown. Owns every open job; those that wait stand in ``app.waiting``. One
event loop. Must not know HTTP or text.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from app.admission import Admission
from app.client import EngineClient
from app.config import GatewayConfig
from app.errors import ApiError, EngineError, OverloadedError
from app.fleet import Fleet
from app.member import Member
from app.queue import Job
from app.readiness import MAX_CONNECTING_S, Readiness
from app.routing.candidate import Policy
from app.routing.policy import choose
from app.waiting import ClassQueue, WaitingRoom
from engine.messages import (
    CacheEvents,
    CacheSnapshot,
    EngineRequest,
    FinishReason,
    ModelCard,
    TimelineEvent,
    TokenDelta,
)

MAX_ATTEMPTS = 3
"""Engines that may lose one request before it fails: one that kills engines must not kill all."""


class Dispatcher:
    """The requests of one model. Implements ``app.client.EngineListener``."""

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
        self.readiness = Readiness(model, self.fleet, clock, max_connecting_s=max_connecting_s)
        self._clock = clock
        self._waiting = WaitingRoom(
            model,
            self.fleet,
            self.readiness,
            config,
            clock,
            submit=self._submit,
            give_up=self._fail,
        )
        self._admission = Admission(model, config, self.readiness, self._waiting)
        self._jobs: dict[str, Job] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def cells_per_gateway(self) -> int | None:
        """As ``GatewayConfig`` has it now."""
        return self._config.cells_per_gateway

    @property
    def card(self) -> ModelCard | None:
        """As ``Readiness.card``."""
        return self.readiness.card

    async def ready_card(self) -> ModelCard:
        """As ``Readiness.ready_card``."""
        return await self.readiness.ready_card()

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
        self._waiting.rechoose(None)  # those of a pool that there is no more

    def enqueue(self, *jobs: Job) -> None:
        """Take all ``jobs`` or none; their answers hear everything from here on.

        Raises as ``Admission.admit``.
        """
        self._admission.admit(jobs)
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

    # Membership.

    def add_engine(self, client: EngineClient) -> Member:
        """``client`` takes requests from now on, those that wait for any engine first."""
        member = Member(client)
        self.fleet.add(member)
        self.readiness.note_change()
        self._waiting.rechoose(None)
        return member

    def reinstate_engine(self, engine_id: str) -> Member | None:
        """Use an engine again that was retired, if it is still connected."""
        member = self.fleet.get(engine_id)
        if member is not None:
            member.is_retiring = False
            self.readiness.note_change()
        return member

    def retire_engine(self, engine_id: str) -> None:
        """Send it nothing more; its connection closes when its running requests have ended."""
        member = self.fleet.get(engine_id)
        if member is not None:
            member.is_retiring = True
            self.readiness.note_change()
            self._waiting.rechoose(engine_id)
            member.announce_demand((0, 0, 0))
            self._close_if_done(member)

    async def close(self) -> None:
        """Close every connection; open requests end with an error."""
        self._is_closed = True
        self._waiting.close(OverloadedError("The gateway is shutting down. Try again."))
        for member in self.fleet:
            member.is_retiring = True
            self._close_soon(member)
        await asyncio.gather(*self._closing)

    # What engines say.

    def on_credits(self, client: EngineClient) -> None:
        member = self.fleet.member_of(client)
        if member is not None:
            self._waiting.use_credits(member)

    def on_step(self, client: EngineClient, events: CacheEvents | None) -> None:
        member = self.fleet.member_of(client)
        if member is not None:
            self.fleet.see_step(member, events)

    def on_snapshot(self, client: EngineClient, snapshot: CacheSnapshot) -> None:
        member = self.fleet.member_of(client)
        if member is not None:
            self.fleet.see_snapshot(member, snapshot)

    def on_draining(self, client: EngineClient) -> None:
        if self.fleet.member_of(client) is not None:
            self.readiness.note_change()
            self._waiting.rechoose(client.card.engine_id)

    def on_closed(self, client: EngineClient, reason: str) -> None:
        member = self.fleet.member_of(client)
        if member is None:
            return
        self.fleet.remove(member.engine_id)
        self.readiness.note_change()
        self._waiting.rechoose(member.engine_id)
        assert not member.running, f"{member.engine_id} closed without ending its requests"
        member.closed.set()

    # Running.

    def _submit(self, member: Member, job: Job) -> None:
        now_s = self._clock()
        job.engine_id = member.engine_id
        job.is_running = True
        job.submitted_s = now_s
        job.num_attempts += 1
        job.num_open_samples = job.num_samples
        job.has_begun = False
        job.num_cached_tokens = None
        job.restored = None
        job.loss = None
        job.new_token_ids = []
        member.begin(job)
        peer = self.fleet.count_send(member, job)
        age_s = max(0.0, now_s - job.arrived_s)
        job.timeline.append(TimelineEvent("submitted", age_s))
        if (expected := job.expected_transfer) is not None:
            kind = f"source_{expected.kind}"
            job.timeline.append(TimelineEvent(kind, age_s, expected.num_tokens))
        request = EngineRequest(
            request_id=job.request_id,
            token_ids=job.prompt.token_ids,
            root_key=job.prompt.root_key,
            block_keys=job.prompt.block_keys,
            sampling=job.sampling,
            timeout_s=max(0.001, job.deadline_s - now_s),
            num_samples=job.num_samples,
            service_class=job.service_class,
            age_s=age_s,
            num_generated_tokens=job.num_generated,
            timeline=list(job.timeline),
            peer=peer,
            session_kind=job.session_kind,
            expected_return_s=job.expected_return_s,
        )
        member.client.submit(request, partial(self._on_delta, member, job))

    def _on_delta(self, member: Member, job: Job, delta: TokenDelta) -> None:
        if not job.has_begun:
            job.has_begun = True
            if delta.usage is not None:
                job.num_cached_tokens = delta.usage.cached_tokens
                job.restored = delta.usage.restored
        if delta.finish_reason is not None:
            self._end_sample(member, job, delta)
        elif job.loss is None:
            if job.num_samples == 1:
                job.new_token_ids += delta.token_ids
            job.answer.on_delta(delta)

    def _end_sample(self, member: Member, job: Job, delta: TokenDelta) -> None:
        num_ended = job.num_open_samples if delta.is_refused else 1
        member.end_samples(job, num_ended)
        is_lost = delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT)
        is_lost = is_lost and not delta.is_refused and not job.is_cancelled
        if job.loss is None:
            can_go_on = job.answer.is_missing_text and job.is_resumable
            if is_lost and (can_go_on or job.answer.can_restart):
                job.loss = delta.error or "it ended the request"
                if job.num_open_samples:  # they are of no use
                    member.client.abort(job.request_id)
            else:
                job.answer.on_delta(delta)
        if job.num_open_samples == 0:
            self._end(member, job)

    def _end(self, member: Member, job: Job) -> None:
        """``job`` has left ``member``: for good, or to start over."""
        job.is_running = False
        if job.loss is not None and not job.is_cancelled:
            if job.is_resumable:
                job.keep_generated(member.client.card.block_size_tokens)
            else:
                job.answer.restart()
            self._retry(job, job.loss)
        else:
            del self._jobs[job.request_id]
        self._close_if_done(member)

    def _retry(self, job: Job, reason: str) -> None:
        assert job.engine_id is not None
        job.tried.add(job.engine_id)
        if self._is_closed:
            self._fail(job, OverloadedError("The gateway is shutting down. Try again."))
        elif job.num_attempts >= MAX_ATTEMPTS:
            self._fail(job, EngineError(f"{job.num_attempts} replicas failed; the last: {reason}"))
        else:
            self._waiting.add(job)

    def _fail(self, job: Job, error: ApiError) -> None:
        del self._jobs[job.request_id]
        job.answer.fail(error)

    def _close_if_done(self, member: Member) -> None:
        if member.is_retiring and not member.running and self.fleet.get(member.engine_id) is member:
            self._close_soon(member)

    def _close_soon(self, member: Member) -> None:
        task = asyncio.create_task(member.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
