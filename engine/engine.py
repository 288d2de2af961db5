"""Token ids in, token ids out: one model replica, driven step by step by whoever owns the loop.

Not thread-safe: ``add``, ``abort`` and ``step`` are called by one thread, never during a step.
Usable without a process, a socket or a device; must not know tensors, transport or text.
"""

import itertools
import logging
import time
from collections.abc import Callable
from typing import Literal

from engine.block_audit import BlockAudit
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.errors import RequestError, StepOutOfMemory
from engine.kv_geometry import KvGeometry
from engine.live_requests import LiveRequests
from engine.load_meter import LoadMeter
from engine.load_view import make_load_view, make_recompute_cost, without_pool
from engine.messages import CacheEvents, EngineRequest, FinishReason, LoadView
from engine.notes import Notes
from engine.observations import EngineStats, RequestNote, StepRecord
from engine.request_ends import RequestEnds
from engine.request_limits import RequestLimits, max_request_tokens
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.step import ModelRunner, StepPlan
from engine.step_limits import StepLimits
from engine.step_output import StepOutput
from engine.step_recorder import StepRecorder, StepTime, count_prefill_tokens
from engine.tier_desk import TierDesk

logger = logging.getLogger(__name__)


class Engine:
    """Owner of all requests of one replica."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        geometry: KvGeometry,
        num_blocks: int,
        max_model_len: int,
        vocab_size: int,
        runner: ModelRunner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._geometry = geometry
        self._num_blocks = num_blocks
        self._limits = RequestLimits(
            max_len=max_request_tokens(
                geometry, num_blocks=num_blocks, max_model_len=max_model_len
            ),
            block_size_tokens=geometry.block_size_tokens,
            vocab_size=vocab_size,
        )
        self._notes = Notes()
        self._step_limits = StepLimits(config)
        self.tiers: TierDesk | None = None
        """To look at between steps."""
        self._meter = LoadMeter()
        self._live = LiveRequests()
        self._start_anew()
        self._runner = runner
        self._clock = clock
        self._is_leaving = False
        """Who comes is handed over at once."""
        self._is_asleep = False
        self.num_failed_steps = 0
        """Since the last one that did what was planned."""

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self._limits.max_len

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would compute or say anything; not while all that are here wait for the
        node.
        """
        return self._live.has_deltas or self._scheduler.has_work

    @property
    def load(self) -> LoadView:
        """As it is between steps."""
        load = make_load_view(
            self._scheduler, self._blocks, self._meter, self._step_limits.step_times, self.tiers
        )
        return without_pool(load) if self._is_asleep else load

    @property
    def stats(self) -> EngineStats:
        """As they are between steps."""
        return self._recorder.stats(self._scheduler, self.tiers)

    def use_tiers(self, tiers: TierDesk) -> None:
        """Keep KV outside of the accelerator, too. Starts anew, as ``forget`` does; precondition:
        the model has one KV group, without a window, and prefixes are cached.
        """
        self.tiers = tiers
        self.forget()
        tiers.poll(self._clock())  # the first request is not to be the first to find the node

    def poll_tiers(self) -> list[CacheEvents]:
        """Go on with what the node has brought; returns what its media gained and lost. Due between
        steps, and while there are none: when ``tiers`` has news, or waited long enough.
        """
        if self.tiers is None:
            return []
        self._notes.now_s = self._clock()
        try:
            for samples in self.tiers.poll(self._notes.now_s):
                self._scheduler.add(samples)
        except Exception as error:
            self._fail_all(error)
        return self.tiers.take_events(self._event_numbers)

    def store_kept(self) -> None:
        """Let the node have what only the accelerator keeps; the next steps do it, even those in
        which nobody is here.
        """
        if self.tiers is not None:
            self.tiers.writer.want(self._blocks.kept_keys)

    def add(self, request: EngineRequest) -> None:
        """Queue a request. One that can never be served gets an error delta from the next step, and
        while the replica leaves, any other one a last delta with ``MOVED``.
        """
        try:
            if request.request_id in self._live:
                raise RequestError("A request with this id is already running.")
            self._limits.check(request)
        except RequestError as error:
            logger.warning("request %s refused: %s", request.request_id, error)
            self._live.refuse(request, str(error))
            return
        now_s = self._clock()
        samples = self._live.enter(request, now_s, max_len=self._limits.max_len)
        self._scheduler.line_up(samples)
        if self._is_leaving or self.tiers is None or not self._ask_node(self.tiers, samples):
            self._scheduler.add(samples)
        self._notes.now_s = now_s
        self._notes.add(samples[0], "taken")
        if self._is_leaving:
            self._ends.finish(samples, FinishReason.MOVED)

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        """End a request, or one sample of it; the last deltas come out of the next step. What is
        not here is ignored.

        With ``num_kept_tokens`` the end is ``STOP``: that generated token completed a stop string,
        later ones count as overrun.
        """
        reason = FinishReason.ABORT if num_kept_tokens is None else FinishReason.STOP
        self._notes.now_s = self._clock()
        try:
            for sequence in self._live.samples_of(request_id):
                if index is None or sequence.index == index:
                    sequence.num_kept_tokens = num_kept_tokens
                    self._ends.finish([sequence], reason)
        except Exception as error:
            self._fail_all(error)

    def hand_over(self, *, only_waiting: bool) -> None:
        """Let other replicas go on: requests end with ``MOVED``, those that come until ``stay`` or
        ``wake`` at once. Those that can't be moved (``LiveRequests.movable``) go on to their end.
        """
        self._is_leaving = True
        self._notes.now_s = self._clock()
        try:
            movable = self._live.movable(only_waiting=only_waiting)
            self._ends.finish(movable, FinishReason.MOVED)
        except Exception as error:
            self._fail_all(error)

    def stay(self) -> None:
        """After ``hand_over``: requests that come are served."""
        assert not self._is_asleep, "only wake ends sleep"
        self._is_leaving = False

    def sleep(self) -> None:
        """The KV pool is about to go: forget all prefixes; the next step tells it. Until ``wake``
        no step computes, and who comes is handed over. Precondition: no request is here.
        """
        assert not self._live, "requests are here"
        self._is_leaving = self._is_asleep = True
        self._blocks.forget_cached()
        self._audit.restart()
        if self.tiers is not None:
            self.tiers.writer.pause()
            self.tiers.settle()

    def wake(self) -> None:
        """There is a KV pool again, without anything of use in it."""
        self._is_leaving = self._is_asleep = False
        if self.tiers is not None:
            self.tiers.writer.resume()

    def step(self) -> StepOutput:
        """Plan, execute, commit. A failure ends all requests that are here, never the engine."""
        started_s = self._notes.now_s = self._clock()
        record = None
        try:
            self._ends.finish(self._live.expired(started_s), FinishReason.TIMEOUT)
            plan = self._scheduler.plan()
            if plan is not None:
                record = self._carry_out(plan, started_s)
            self._audit_blocks()
        except Exception as error:
            self._fail_all(error)
        return StepOutput(
            self._live.take_deltas(),
            self._blocks.take_events(),
            self.load,
            self.stats,
            record,
            self._notes.take(),
        )

    def take_notes(self) -> list[RequestNote]:
        """For what is told between steps: the next step does not tell them again."""
        return self._notes.take()

    def audit_slice(self) -> bool:
        """Compare some reference counts with the sequences, if an audit is due; ``step`` does so,
        too. Returns whether more of this audit is left: idle, the owner of the loop may call again.
        """
        self._notes.now_s = self._clock()
        try:
            self._audit_blocks()
        except Exception as error:
            self._fail_all(error)
        return self._audit.is_under_way

    def forget(self) -> None:
        """Drop cached prefixes and counts since start, also of events: what a warm-up left behind.
        Who followed the events starts anew, too.

        Precondition: no request is here. The speeds measured so far stay known, and the steps that
        were out of memory.
        """
        assert not self._live
        assert not self._live.has_deltas
        self._start_anew()
        self._scheduler.reset()  # the runner still holds the slots of the last requests

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless requests, slots and blocks agree."""
        num_scheduled = self._scheduler.num_waiting + self._scheduler.num_running
        if self.tiers is not None:
            num_scheduled += self.tiers.num_waiting
        self._live.check_integrity(num_scheduled)
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Give the device memory back; no call follows."""
        if self.tiers is not None:
            self.tiers.close()
        self._runner.close()

    def _start_anew(self) -> None:
        tiers = self.tiers
        self._event_numbers = itertools.count(1)
        self._blocks = BlockManager(
            self._num_blocks,
            self._geometry,
            prefix_caching=self._config.prefix_caching,
            event_numbers=self._event_numbers,
            writer=None if tiers is None else tiers.writer,
        )
        self._notes.take()
        self._scheduler = Scheduler(
            self._config, self._blocks, self._notes, self._step_limits, tiers=tiers
        )
        self._audit = BlockAudit(self._blocks, self._scheduler.running)
        self._recorder = StepRecorder()
        self._ends = RequestEnds(
            self._live, self._scheduler, tiers, self._notes, self._recorder, self._meter
        )

    def _ask_node(self, tiers: TierDesk, samples: list[Sequence]) -> bool:
        """Whether the request is to wait for what the node has of its prefix."""
        first = samples[0]
        num_held = self._blocks.num_held_blocks(first)
        first.num_expected_hit_tokens = num_held * self._geometry.block_size_tokens
        for sample in samples[1:]:
            sample.num_expected_hit_tokens = sample.num_tokens
        return tiers.ask(samples, num_held, lambda: make_recompute_cost(self.load))

    def _carry_out(self, plan: StepPlan, started_s: float) -> StepRecord:
        outcome: Literal["ok", "out_of_memory", "failed"] = "ok"
        transfer_s = 0.0
        try:
            result = self._runner.execute(plan)
            transfer_s = result.transfer_s
            self._notes.now_s = self._clock()
            self._ends.deliver(self._scheduler.commit(plan, result))
            self.num_failed_steps = 0
        except StepOutOfMemory as error:
            outcome = "out_of_memory"
            self._give_up(plan, error)
        except Exception as error:
            outcome = "failed"
            self._fail_all(error)
        time = StepTime(started_s, self._clock())
        if outcome == "ok":
            if plan.scheduled:
                self._meter.record(time.duration_s, count_prefill_tokens(plan))
            self._step_limits.record_time(
                plan, started_s=started_s, ended_s=time.ended_s, transfer_s=transfer_s
            )
        return self._recorder.record(plan, time, self._scheduler, self._blocks, outcome)

    def _give_up(self, plan: StepPlan, error: StepOutOfMemory) -> None:
        """Everybody waits again, for smaller steps; whoever fits into none ends."""
        self._notes.now_s = self._clock()
        too_large = self._scheduler.give_up(plan)
        self._audit.restart()
        limits = self._step_limits
        logger.warning(
            "a step of %d tokens was out of memory (%s); from now on at most %d tokens and %d "
            "sequences",
            plan.num_tokens,
            error,
            limits.max_tokens,
            limits.max_seqs,
        )
        if too_large is not None:
            self._ends.finish_too_large(too_large)

    def _audit_blocks(self) -> None:
        leak = self._audit.advance(self._notes.now_s)
        if leak is not None:
            logger.error(
                "block %d had %d references more than sequences hold; request %s took it last",
                *leak,
            )
            self._blocks.give_back(leak.block_id, leak.num_references)
            self._recorder.num_leaked_blocks += 1

    def _fail_all(self, error: Exception) -> None:
        self.num_failed_steps += 1
        self._notes.now_s = self._clock()
        self._audit.restart()
        self._ends.fail_all(error)
