"""The step loop: takes gateways' frames from a pipe, steps the engine, reports what each step did.

Single-threaded: an I/O thread beside it made the slowest steps 1.3 to 1.6 times as long. Frames for
gateways are encoded here, one per gateway and step, so that the front only forwards bytes. Must not
know the model.
"""

import time
from collections import defaultdict
from dataclasses import dataclass

import msgspec

from engine.engine import Engine
from engine.errors import EngineDeadError
from engine.garbage import GarbageCollector
from engine.messages import (
    Abort,
    CacheEvents,
    FinishReason,
    ServiceClass,
    StepFrame,
    Submit,
    TokenDelta,
)
from engine.observations import EngineStats
from engine.profiling import StepProfiler
from engine.rank_messages import (
    FromGateway,
    GatewayGone,
    HandOver,
    RankCommand,
    Record,
    RungChange,
    Sleep,
    SourceFrame,
    Stay,
    StepReport,
    StoreKept,
    Wake,
)
from engine.request_limits import num_places
from engine.sleeper import Sleeper
from engine.step_output import StepOutput
from wire.pipe import SyncPipe, wait_any

IDLE_POLL_S = 1.0
"""An idle loop shows this often that it lives."""
ANSWER_WAIT_S = 0.001
"""A step waits so long for what the node says of a prompt that just came: as a rule it answers
within half of that, and the prompt need not wait for the step after this one."""
RECORDING_POLL_S = 0.02
"""It looks this often whether the time for a recording is over."""
MAX_FAILED_STEPS = 5
"""One after the other: then it is not the requests. An engine that fails at once looks idle to
routers and would draw ever more requests, so it ends."""


@dataclass(slots=True)
class _OpenRequest:
    """A request that has not had its last delta."""

    source: int
    num_places: int
    """Of samples that have not had theirs."""
    service_class: ServiceClass


@dataclass(frozen=True, slots=True)
class _Refused:
    """A request that the engine never saw."""

    source: int
    delta: TokenDelta
    num_places: int
    service_class: ServiceClass


class StepLoop:
    """Owner of the map from requests to the gateways that sent them."""

    def __init__(
        self,
        engine: Engine,
        pipe: SyncPipe,
        garbage: GarbageCollector | None = None,
        profiler: StepProfiler | None = None,
        sleeper: Sleeper | None = None,
    ) -> None:
        """``sleeper``: None for an engine that is never told to sleep."""
        self._engine = engine
        self._profiler = profiler or StepProfiler()
        self._garbage = garbage or GarbageCollector()
        self._pipe = pipe
        self._sleeper = sleeper
        self._open: dict[str, _OpenRequest] = {}
        self._refused: list[_Refused] = []
        self._num_submits_taken = 0
        self._storing_kept: int | None = None
        """Number of the ``StoreKept`` that is not done."""
        self._rung_change: RungChange | None = None
        """To be told with a step, which tells what the prefix cache lost."""
        self._is_auditing = False
        """An idle loop then goes on at once, slice by slice."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_command = msgspec.msgpack.Decoder(RankCommand).decode
        self._decode_message = msgspec.msgpack.Decoder(Submit | Abort).decode

    def run(self) -> None:
        """Go round until the pipe closes, which raises ``ConnectionClosed``.

        Raises ``EngineDeadError`` when every step fails.
        """
        try:
            while True:
                self.turn()
        finally:
            self._profiler.close()

    def turn(self) -> None:
        """Take what came, then step if there is work; wait for some if there is none."""
        is_idle = not (self._engine.has_work or self._is_auditing)
        if is_idle:
            self._garbage.collect_idle()
        for frame in self._wait() if is_idle else self._pipe.poll(0.0):
            self._apply(self._decode_command(frame))
        self._poll_tiers()
        has_news = self._refused or self._rung_change is not None or self._profiler.is_ready()
        if self._engine.has_work or has_news:
            self._profiler.begin_step()
            rung_change, self._rung_change = self._rung_change, None
            report = self._report(self._engine.step(), rung_change)
            self._pipe.send(self._encode(report))
            self._profiler.end_step(report.record)
            if self._engine.num_failed_steps >= MAX_FAILED_STEPS:
                raise EngineDeadError(f"{MAX_FAILED_STEPS} steps failed one after the other")
            self._garbage.collect_between_steps()
            self._tell_kept_stored()
            return
        self._tell_kept_stored()
        self._is_auditing = self._engine.audit_slice()
        if not self._is_auditing:
            self._pipe.send_heartbeat()

    def _wait(self) -> list[bytes]:
        """For something to do, of the front or of the node's cache."""
        longest_s = IDLE_POLL_S if self._profiler.is_idle else RECORDING_POLL_S
        tiers = self._engine.tiers
        if tiers is None:
            return self._pipe.poll(longest_s)
        if tiers.expires_s is not None:
            longest_s = max(0.0, min(longest_s, tiers.expires_s - time.monotonic()))
        pipes = [self._pipe] if tiers.pipe is None else [self._pipe, tiers.pipe]
        wait_any(pipes, longest_s)
        return self._pipe.poll(0.0)

    def _poll_tiers(self) -> None:
        """What the node's media gained and lost is told at once, also while nobody is here."""
        tiers = self._engine.tiers
        if self._num_submits_taken and self._engine.has_work and tiers is not None:
            tiers.await_answer(ANSWER_WAIT_S)
        was_connected = tiers is not None and tiers.pipe is not None
        for events in self._engine.poll_tiers():
            self._tell(events)
        if tiers is None:
            return
        is_waiting = self._num_submits_taken > 0 and tiers.num_waiting > 0
        if is_waiting or was_connected is not (tiers.pipe is not None):
            self._tell(None)  # the load view counts who waits, metrics show who is connected

    def _tell_kept_stored(self) -> None:
        tiers = self._engine.tiers
        if self._storing_kept is not None and (tiers is None or tiers.writer.num_wanted == 0):
            number, self._storing_kept = self._storing_kept, None
            self._tell(None, kept_stored=number)

    def _tell(self, events: CacheEvents | None, *, kept_stored: int | None = None) -> None:
        """Report without a step."""
        engine = self._engine
        # Who was taken is told with how many were.
        output = StepOutput([], events, engine.load, engine.stats, notes=engine.take_notes())
        report = self._report(output)
        report = msgspec.structs.replace(report, kept_stored=kept_stored)
        self._pipe.send(self._encode(report))

    def _apply(self, command: RankCommand) -> None:
        if isinstance(command, GatewayGone):
            for request_id, request in self._open.items():
                if request.source == command.source:
                    self._engine.abort(request_id)
            return
        if isinstance(command, StoreKept):
            self._engine.store_kept()
            self._storing_kept = command.number
            return
        if isinstance(command, Record):
            self._profiler.start(command.order)
            return
        if isinstance(command, FromGateway):
            self._take_message(command)
        else:
            self._go(command)

    def _go(self, command: HandOver | Stay | Sleep | Wake) -> None:
        """Down or up the ladder."""
        assert self._sleeper is not None, "nobody can put this engine to sleep"
        match command:
            case HandOver():
                self._engine.hand_over(only_waiting=command.only_waiting)
            case Stay():
                self._engine.stay()
            case Sleep():
                self._rung_change = self._sleeper.sleep()
            case Wake():
                self._rung_change = self._sleeper.wake()

    def _take_message(self, command: FromGateway) -> None:
        message = self._decode_message(command.payload)
        if isinstance(message, Submit):
            self._submit(command.source, message)
        elif self._is_open(message.request_id, command.source):
            self._engine.abort(message.request_id, message.num_kept_tokens, message.index)

    def _is_open(self, request_id: str, source: int) -> bool:
        request = self._open.get(request_id)
        return request is not None and request.source == source

    def _submit(self, source: int, submit: Submit) -> None:
        self._num_submits_taken += 1
        request = submit.request
        if request.request_id in self._open:  # or its answer would go to another gateway
            error = "A request with this id is already running."
            delta = TokenDelta(
                request.request_id, [], FinishReason.ERROR, error=error, is_refused=True
            )
            places = num_places(request)
            self._refused.append(_Refused(source, delta, places, request.service_class))
            return
        self._open[request.request_id] = _OpenRequest(
            source, num_places(request), request.service_class
        )
        self._engine.add(request)

    def _report(self, output: StepOutput, rung_change: RungChange | None = None) -> StepReport:
        deltas_of: defaultdict[int, list[TokenDelta]] = defaultdict(list)
        num_finished_of: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(ServiceClass))
        for refused in self._refused:
            deltas_of[refused.source].append(refused.delta)
            num_finished_of[refused.source][refused.service_class] += refused.num_places
        self._refused.clear()
        for delta in output.deltas:
            request = self._open[delta.request_id]
            deltas_of[request.source].append(delta)
            if delta.finish_reason is not None:
                num_ended = self._finish(delta, request)
                num_finished_of[request.source][request.service_class] += num_ended
        frames = [
            SourceFrame(
                source,
                self._encode(StepFrame(deltas, output.load, output.events)),
                sum(num_finished_of[source]),
                _per_class(num_finished_of[source]),
            )
            for source, deltas in deltas_of.items()
        ]
        num_submits_taken, self._num_submits_taken = self._num_submits_taken, 0
        return StepReport(
            frames,
            output.load,
            output.events,
            num_submits_taken,
            self._with_pauses(output.stats),
            output.record,
            output.notes,
            self._profiler.take(),
            rung_change=rung_change,
        )

    def _with_pauses(self, stats: EngineStats) -> EngineStats:
        totals = self._garbage.totals
        return msgspec.structs.replace(
            stats,
            num_gc_pauses=totals.num_pauses,
            gc_pause_s=totals.pause_s,
            longest_gc_pause_s=totals.longest_pause_s,
        )

    def _finish(self, delta: TokenDelta, request: _OpenRequest) -> int:
        """Count off what a last delta ends; returns the places that become free."""
        num_ended = request.num_places if delta.is_refused else 1
        request.num_places -= num_ended
        if request.num_places == 0:
            del self._open[delta.request_id]
        return num_ended


def _per_class(counts: list[int]) -> tuple[int, int, int]:
    interactive, standard, batch = counts
    return interactive, standard, batch
