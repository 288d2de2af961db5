"""How large a step may be: what is configured, less for memory's sake or for that of the streams.

Must not know sequences, and reads no clock.
"""

from engine.config import EngineConfig
from engine.load_limits import LoadLimits
from engine.memory_limits import MemoryLimits
from engine.observations import LimitReason
from engine.step import StepPlan
from engine.step_time import StepTimeModel, StepWork, measure_work

_MOST_OVERHEAD = 0.5
"""Of a step's time: a longer time before it was not spent on it, there was nothing to do."""


class StepLimits:
    """Owner of the limits in force."""

    def __init__(self, config: EngineConfig) -> None:
        self._memory = MemoryLimits(config)
        self._load = LoadLimits(config)
        self._min_prefill_tokens = config.min_prefill_chunk_tokens
        self._most_tokens = config.max_num_batched_tokens
        self._most_seqs = config.max_num_seqs
        self._last_ended_s: float | None = None

    @property
    def step_times(self) -> StepTimeModel:
        """What was learned of them, to be read."""
        return self._load.model

    @property
    def max_tokens(self) -> int:
        """Token budget of one step."""
        return min(self._memory.max_tokens, self._load.max_tokens)

    @property
    def max_tokens_of_memory(self) -> int:
        """Tokens that no step has more of: one without decodes may have all of them."""
        return self._memory.max_tokens

    @property
    def max_seqs(self) -> int:
        """Sequences that may be admitted, those that run included."""
        return min(self._memory.max_seqs, self._load.max_seqs)

    @property
    def max_seqs_of_memory(self) -> int:
        """Sequences that can run: never more do."""
        return self._memory.max_seqs

    @property
    def max_context_tokens(self) -> int | None:
        """Tokens that running sequences may have all together, when one more is admitted."""
        return self._load.max_context_tokens

    @property
    def reason(self) -> LimitReason:
        """Why the limits are what they are; nobody is held up by the context of others."""
        memory, load = self._memory, self._load
        if memory.max_tokens < min(self._most_tokens, load.max_tokens) or (
            memory.max_seqs < min(self._most_seqs, load.max_seqs)
        ):
            return "memory"
        return "tpot_target" if load.is_limiting else "configured"

    def prompt_tokens(self, decodes: StepWork, *, start: int, num_prompts: int) -> int:
        """Tokens that the next step has for prompts beside ``decodes``, at least the smallest
        chunk. The first prompt goes on at position ``start``, and ``num_prompts`` are computed or
        wait.
        """
        most = self._memory.max_tokens - decodes.num_decodes
        tokens = self._load.prompt_tokens(decodes, start=start, num_prompts=num_prompts, most=most)
        return max(tokens, self._min_prefill_tokens)

    def spare_s(self, decodes: StepWork) -> float | None:
        """Time that a step may take beside ``decodes``, for other work than theirs; None: any."""
        return self._load.spare_s(decodes)

    def shrink(self, plan: StepPlan) -> bool:
        """``plan`` did not fit into memory: make later ones smaller. ``False`` when there is no
        smaller one and it was tried often enough.
        """
        return self._memory.shrink(plan)

    def record_fit(self) -> None:
        """A step fitted into memory."""
        self._memory.record_fit()

    def record_time(
        self, plan: StepPlan, *, started_s: float, ended_s: float, transfer_s: float = 0.0
    ) -> None:
        """``plan`` was carried out. What its streams waited counts: from the end of the step before
        it, unless there was nothing to do; a step may also be planned before that. What blocks took
        that were moved, ``transfer_s``, is no cost of computing.
        """
        time_s = ended_s - started_s
        last_s, self._last_ended_s = self._last_ended_s, ended_s
        if last_s is not None and started_s - last_s <= _MOST_OVERHEAD * time_s:
            time_s = ended_s - last_s
        if plan.scheduled:
            self._load.record(measure_work(plan.scheduled), time_s - transfer_s)
