"""One run of the scheduler over a queue of requests in a KV pool that is too small for them, in
virtual time.

Planning is the engine's own, whole; the runner only keeps the time that a step would take and ends
every answer at the length that was drawn for it. Whoever admits doesn't know that length, except
``KnownDemand``, the bound for all who don't.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.block_manager import BlockManager
from engine.config import EngineConfig, PacedConfig
from engine.kv_demand import KvDemand
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import EngineRequest, FinishReason, SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence as EngineSequence
from engine.step import SampledToken, ScheduledSequence, StepPlan, StepResult
from engine.waiting_queue import BY_ORDER

BLOCK_SIZE_TOKENS = 16
GEOMETRY = KvGeometry((KvGroup((0,)),), 1, 1, BLOCK_SIZE_TOKENS, 2)
_END_TOKEN = 0
_VOCAB_SIZE = 50_000
_ROOT_KEY = root_key(KeySalt("kv-admission", "bfloat16", BLOCK_SIZE_TOKENS, "none"))


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that all wait from the start."""

    prompt_lens: Sequence[int]
    output_lens: Sequence[int]
    """Of each answer; what an answer has at ``max_tokens`` is cut off there."""
    max_tokens: int

    @property
    def mean_len(self) -> float:
        """Prompt and answer."""
        return (sum(self.prompt_lens) + sum(self.output_lens)) / len(self.output_lens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the time in which somebody waited, but for the counts of the whole run."""

    tokens_per_s: float
    mean_running: float
    recomputed_share: float
    """Tokens computed again, of all computed; of the whole run."""
    num_preemptions: int
    """Of the whole run."""
    num_failed: int
    """Answers of another length than was drawn; of the whole run."""


class ScriptedRunner:
    """Knows when each answer ends, by the seed of its request, and the virtual time."""

    def __init__(self, workload: Workload, step_times: PacedConfig) -> None:
        self._output_lens = workload.output_lens
        self._times = step_times
        self._slots: dict[int, tuple[int, int]] = {}
        """Number of the request, tokens of its prompt."""
        self.now_s = 0.0
        self.num_computed_tokens = 0

    def execute(self, plan: StepPlan) -> StepResult:
        for admission in plan.admissions:
            self._slots[admission.slot] = (admission.sampling.seed, admission.num_prompt_tokens)
        num_tokens = plan.num_tokens
        num_decodes = sum([entry.is_last_pending for entry in plan.scheduled])
        times = self._times
        self.now_s += times.step_base_s + times.per_decode_s * num_decodes
        self.now_s += times.per_prefill_token_s * (num_tokens - num_decodes)
        self.num_computed_tokens += num_tokens
        sampled = [self._draw(e, slot) for e in plan.scheduled for slot in e.sampling_slots]
        return StepResult(plan.step_id, tuple(sampled))

    def _draw(self, entry: ScheduledSequence, slot: int) -> SampledToken:
        number, num_prompt_tokens = self._slots[slot]
        num_generated = entry.start + entry.num_tokens - num_prompt_tokens + 1
        is_end = num_generated >= self._output_lens[number]
        token_id = _END_TOKEN if is_end else 1 + (number * 31 + num_generated) % (_VOCAB_SIZE - 1)
        return SampledToken(slot, token_id)


@dataclass(slots=True)
class KnownDemand:
    """Knows how long every answer will be: the peak stands where one of them ends."""

    blocks: BlockManager
    output_lens: Sequence[int]

    def fits(
        self, running: Sequence[EngineSequence], candidate: EngineSequence, num_new_blocks: int
    ) -> bool:
        before = running[: bisect_left(running, candidate.order, key=BY_ORDER)]
        left = sorted(
            [(self._num_left(sequence), sequence.num_tokens) for sequence in (*before, candidate)],
            reverse=True,
        )
        num_tokens, peak_tokens = 0, 0
        for rank, (num_left, num_held) in enumerate(left, start=1):
            num_tokens += num_held
            peak_tokens = max(peak_tokens, num_tokens + rank * (num_left + BLOCK_SIZE_TOKENS // 2))
        return peak_tokens <= self.blocks.num_blocks * BLOCK_SIZE_TOKENS

    def record_preemption(self, sequence: EngineSequence) -> None:
        pass

    def record_end(self, sequence: EngineSequence) -> None:
        pass

    def _num_left(self, sequence: EngineSequence) -> int:
        return self.output_lens[sequence.sampling.seed] - sequence.num_generated_tokens


@dataclass(slots=True)
class Run:
    """One queue, worked off."""

    workload: Workload
    config: EngineConfig
    num_blocks: int
    demand: Callable[[BlockManager], KvDemand] | None = None
    """Instead of what ``config`` names."""
    scheduler: Scheduler = field(init=False)
    sequences: list[EngineSequence] = field(init=False)

    def __post_init__(self) -> None:
        blocks = BlockManager(self.num_blocks, GEOMETRY, prefix_caching=self.config.prefix_caching)
        demand = None if self.demand is None else self.demand(blocks)
        self.scheduler = Scheduler(self.config, blocks, demand=demand)
        self.sequences = []
        for number, num_tokens in enumerate(self.workload.prompt_lens):
            self.sequences.append(self._make_sequence(number, num_tokens))
            self.scheduler.add(self.sequences[-1:])

    def work_off(self) -> Outcome:
        """To the end of the last answer."""
        scheduler, runner = self.scheduler, ScriptedRunner(self.workload, self.config.paced)
        num_running = num_full_steps = num_tokens = 0
        full_s = 0.0
        while (plan := scheduler.plan()) is not None:
            scheduler.commit(plan, runner.execute(plan))
            if scheduler.num_waiting > 0:
                full_s, num_tokens = runner.now_s, scheduler.totals.num_generated_tokens
                num_running += scheduler.num_running
                num_full_steps += 1
        totals = scheduler.totals
        return Outcome(
            tokens_per_s=num_tokens / full_s,
            mean_running=num_running / num_full_steps,
            recomputed_share=totals.num_recomputed_tokens / runner.num_computed_tokens,
            num_preemptions=totals.num_preemptions,
            num_failed=sum(map(self._has_failed, self.sequences)),
        )

    def _make_sequence(self, number: int, num_tokens: int) -> EngineSequence:
        draw = random.Random(number)
        token_ids = [draw.randrange(1, _VOCAB_SIZE) for _ in range(num_tokens)]
        keys = list(block_keys(_ROOT_KEY, token_ids, BLOCK_SIZE_TOKENS))
        max_tokens = self.workload.max_tokens
        sampling = SamplingParams(max_tokens, seed=number, stop_token_ids=(_END_TOKEN,))
        request = EngineRequest(str(number), token_ids, _ROOT_KEY, [*keys], sampling, 1e9)
        return EngineSequence(request, deadline_s=1e9, max_len=num_tokens + max_tokens)

    def _has_failed(self, sequence: EngineSequence) -> bool:
        is_over = sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        expected = self.workload.output_lens[sequence.sampling.seed]
        return not is_over or sequence.num_generated_tokens != expected
