"""An engine of which only the planning is real: production scheduler, block manager and limits, and
a performance model instead of a model.

What it plans is a *run*: one step, or a stretch of steps in which everybody decodes and nothing can
change before the first of them ends. A stretch passes at once, with the same results as step by
step. Must not know events, routers or tiers; time is an argument.

    begin ──▶ when the run will end ──▶ finish          and, when something comes amid a stretch:
                  ▲── cut: it ends with the step that is under way
"""

import math
from collections.abc import Sequence as OrderedSequence
from dataclasses import dataclass, field

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.kv_geometry import KvGeometry, KvGroup
from engine.load_meter import LoadMeter
from engine.load_view import make_load_view
from engine.messages import (
    CacheEvents,
    EngineRequest,
    FinishReason,
    LoadView,
    SamplingParams,
    ServiceClass,
)
from engine.notes import Notes
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.step import SampledToken, StepPlan, StepResult
from engine.step_limits import StepLimits
from engine.step_recorder import count_prefill_tokens
from engine.step_time import StepWork, measure_work
from simulator.performance import PerformanceModel
from simulator.stretch import Stretch, advance, blocks_needed

_WELL_KNOWN_ERROR = 0.01
_LOOK_AGAIN_RUNS = 32
_MIN_DECODE_STEPS = 4
_NO_TIMEOUT_S = math.inf


@dataclass(slots=True)
class Progress:
    """What a run changed; a stretch that was cut before anybody ended changed nothing that routers
    go by.
    """

    begun: list[Sequence] = field(default_factory=list)
    """That have their first token now."""
    ended: list[Sequence] = field(default_factory=list)
    has_news: bool = True
    """For routers."""


@dataclass(slots=True)
class _Step:
    started_s: float
    ends_s: float
    plan: StepPlan


class PlannedEngine:
    """Owner of the sequences of one simulated replica."""

    def __init__(
        self,
        config: EngineConfig,
        model: PerformanceModel,
        *,
        num_blocks: int,
        block_size_tokens: int,
        key_stride: int,
        stretches: bool = True,
    ) -> None:
        """``stretches``: False takes every step by itself."""
        self.block_size_tokens = block_size_tokens
        self.max_request_tokens = num_blocks * block_size_tokens
        if config.max_model_len is not None:
            self.max_request_tokens = min(self.max_request_tokens, config.max_model_len)
        self._config = config
        self._model = model
        self._stretches = stretches and config.tpot_target_s is None
        self._has_goals = config.tpot_target_s is not None or config.max_step_stretch is not None
        self._blocks = BlockManager(
            num_blocks,
            # Planning asks it for the size of blocks only.
            KvGeometry((KvGroup((0,)),), 1, 1, block_size_tokens, 2),
            prefix_caching=config.prefix_caching,
            key_stride=key_stride,
        )
        self._notes = Notes()
        self._limits = StepLimits(config)
        self._scheduler = Scheduler(config, self._blocks, self._notes, self._limits)
        self._meter = LoadMeter()
        self._incoming: list[Sequence] = []
        self._run: _Step | Stretch | None = None
        self._is_blocked = False
        """Who waits can't start before somebody ends or comes."""
        self._classes: set[ServiceClass] = set()
        """Of all that ever came."""
        self._num_decode_steps_learned = 0
        """Without prompt tokens."""
        self.num_steps = 0
        self.num_runs = 0

    @property
    def has_work(self) -> bool:
        return bool(self._incoming or self._scheduler.num_running or self._scheduler.num_waiting)

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.totals.num_preemptions

    @property
    def live(self) -> list[Sequence]:
        """That run, or have come since the run began; not those that wait."""
        return [*self._scheduler.running, *self._incoming]

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of so many tokens, answer included, can be held."""
        return num_tokens <= self.max_request_tokens

    def add(self, request: EngineRequest, now_s: float) -> Sequence:
        """Before the next run begins. Precondition: it ``fits``."""
        max_len = len(request.token_ids) + request.sampling.max_tokens
        sequence = Sequence(request, deadline_s=_NO_TIMEOUT_S, max_len=max_len, taken_s=now_s)
        self._incoming.append(sequence)
        return sequence

    def begin(self, now_s: float) -> float:
        """Plan a run; returns when it ends. Precondition: there is work, and no run."""
        assert self._run is None
        self._notes.now_s = now_s
        for sequence in self._incoming:
            self._scheduler.add([sequence])
            self._classes.add(sequence.request.service_class)
            self._is_blocked = False
        self._incoming.clear()
        self._run = self._stretch(now_s) or self._step(now_s)
        return self._run.ends_s

    def cut(self, now_s: float) -> float:
        """Something came: the run ends with the step that is under way. Returns when."""
        assert self._run is not None
        if isinstance(self._run, Stretch):
            self._run.cut(now_s)
        return self._run.ends_s

    def finish(self) -> Progress:
        """The run's end has come."""
        run, self._run = self._run, None
        self.num_runs += 1
        assert run is not None
        if isinstance(run, _Step):
            return self._commit(run)
        if self._is_worth_learning():
            return self._commit(self._last_step(run))
        return self._end_stretch(run)

    def find_prefix(self, keys: OrderedSequence[bytes], num_tokens: int) -> int:
        """Tokens of the prompt of ``num_tokens`` with these keys that the accelerator holds."""
        if not keys:
            return 0
        return self._blocks.find_prefix(self._probe(keys, num_tokens)).num_tokens

    def store(self, keys: OrderedSequence[bytes]) -> None:
        """The blocks of ``keys`` were loaded: hold them as cached, as far as there is room.

        Between runs.
        """
        assert self._run is None
        sequence = self._probe(keys, len(keys) * self.block_size_tokens)
        hit = self._blocks.find_prefix(sequence)
        num_new = self._blocks.num_admission_blocks(
            sequence, hit, chunk_tokens=self._limits.max_tokens_of_memory
        )
        if num_new + self._scheduler.num_running >= self._blocks.num_free_blocks:
            return  # they are computed instead
        self._blocks.admit(sequence, hit)
        sequence.num_computed_tokens = sequence.num_tokens
        self._blocks.publish(sequence)
        self._blocks.commit()
        self._blocks.release(sequence)

    def load_view(self) -> LoadView:
        return make_load_view(self._scheduler, self._blocks, self._meter, self._limits.step_times)

    def take_events(self) -> CacheEvents | None:
        return self._blocks.take_events()

    def check_integrity(self) -> None:
        """Between runs. Raise ``AssertionError`` unless slots, queues and blocks agree."""
        self._scheduler.check_integrity()

    def _probe(self, keys: OrderedSequence[bytes], num_tokens: int) -> Sequence:
        request = EngineRequest("", [0] * num_tokens, b"", list(keys), _NO_ANSWER, _NO_TIMEOUT_S)
        return Sequence(request, deadline_s=_NO_TIMEOUT_S, max_len=num_tokens)

    def _step(self, now_s: float) -> _Step:
        plan = self._scheduler.plan()
        assert plan is not None
        return _Step(now_s, now_s + self._model.step_time_s(measure_work(plan.scheduled)), plan)

    def _stretch(self, now_s: float) -> Stretch | None:
        running = self._scheduler.running
        if not self._stretches or not running:
            return None
        if self._scheduler.num_waiting and not self._is_blocked:
            return None
        num_steps, num_context = running[0].max_len, 0
        for sequence in running:
            if not sequence.is_last_on_device:
                return None
            num_context += sequence.num_computed_tokens
            # The newest token is not computed yet: one step takes it up to ``max_len``.
            num_steps = min(num_steps, sequence.max_len - sequence.num_computed_tokens - 1)
        block_size = self.block_size_tokens
        while num_steps > 1 and (
            blocks_needed(running, num_steps, block_size) > self._blocks.num_free_blocks
        ):
            num_steps //= 2
        if num_steps < 2:
            return None
        num = len(running)
        first_s = self._model.step_time_s(StepWork(0, num, num_context))
        last_s = self._model.step_time_s(StepWork(0, num, num_context + (num_steps - 1) * num))
        return Stretch(now_s, num_steps, first_s, (last_s - first_s) / (num_steps - 1))

    def _last_step(self, stretch: Stretch) -> _Step:
        """What is left of ``stretch`` when all steps before are done; as production plans it."""
        num_before = stretch.num_steps - 1
        self._advance(stretch, num_before)
        self._notes.now_s = started_s = stretch.started_s + stretch.time_s(num_before)
        plan = self._scheduler.plan()
        assert plan is not None
        return _Step(started_s, stretch.ends_s, plan)

    def _end_stretch(self, stretch: Stretch) -> Progress:
        self._advance(stretch, stretch.num_steps)
        self._notes.now_s = stretch.ends_s
        ended = [s for s in self._scheduler.running if s.num_tokens == s.max_len]
        for sequence in ended:
            sequence.finish_reason = FinishReason.LENGTH
            self._scheduler.finish(sequence)
            self._meter_answer(sequence)
        self._is_blocked &= not ended
        self._notes.take()
        return Progress(ended=ended, has_news=bool(ended))

    def _advance(self, stretch: Stretch, num_steps: int) -> None:
        """The first ``num_steps`` of it are done."""
        advance(self._scheduler, self._blocks, num_steps)
        self.num_steps += num_steps
        if num_steps:
            # The last ones count most, and they differ little.
            self._meter.record_alike(stretch.step_time_s(num_steps - 1), num_steps)

    def _meter_answer(self, sequence: Sequence) -> None:
        assert sequence.admitted_s is not None
        self._meter.record_answer(self._notes.now_s - sequence.admitted_s)

    def _commit(self, step: _Step) -> Progress:
        plan = step.plan
        self._notes.now_s = step.ends_s
        of_slot = {s.slot: s for s in self._scheduler.running}
        sampled = [
            # Any token that no other prompt holds here: the number in the request's own.
            SampledToken(slot, of_slot[slot].prompt_ids[0])
            for entry in plan.scheduled
            for slot in entry.sampling_slots
        ]
        advanced = self._scheduler.commit(plan, StepResult(plan.step_id, tuple(sampled)))
        self.num_steps += 1
        progress = Progress()
        for sequence in advanced:
            if sequence.num_generated_tokens == 1:
                progress.begun.append(sequence)
            if sequence.finish_reason is not None:
                progress.ended.append(sequence)
                self._meter_answer(sequence)
        num_prefill = count_prefill_tokens(plan)
        self._meter.record(step.ends_s - step.started_s, num_prefill)
        if self._is_worth_learning():
            self._limits.record_time(plan, started_s=step.started_s, ended_s=step.ends_s)
            self._num_decode_steps_learned += num_prefill == 0
        self._note_blocked(plan, num_prefill, has_freed=bool(progress.ended))
        self._notes.take()
        return progress

    def _is_worth_learning(self) -> bool:
        """Whether the engine's own model of step times changes anything, or is yet to be told to
        routers; what is known well is only looked at now and then.

        Steps of decodes alone are waited for: full steps with prompts don't tell what a step costs
        by itself from what its tokens cost, however small the error.
        """
        model = self._limits.step_times
        has_seen = model.seen >= 1.0 and self._num_decode_steps_learned >= _MIN_DECODE_STEPS
        is_known = has_seen and model.error < _WELL_KNOWN_ERROR
        return self._has_goals or not is_known or self.num_runs % _LOOK_AGAIN_RUNS == 0

    def _note_blocked(self, plan: StepPlan, num_prefill: int, *, has_freed: bool) -> None:
        """Whether those that wait were tried by this plan and will find no room until somebody
        comes or ends.
        """
        scheduler = self._scheduler
        self._is_blocked = (
            # Classes make way for each other.
            len(self._classes) == 1
            and not (has_freed or num_prefill or plan.admissions)
            and (
                scheduler.num_running >= self._limits.max_seqs
                # Predicted demand may fall while answers grow; free blocks get fewer.
                or self._config.kv_admission != "predicted"
                or scheduler.is_out_of_blocks
            )
        )


_NO_ANSWER = SamplingParams(max_tokens=0)
