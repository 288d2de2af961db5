"""How large a step may be for the sake of those who wait for their next token.

With a target for the time per output token: what a model of step times says that fits into it. The
number of sequences and the context that they hold are limited so that a step of decodes leaves room
for the smallest part of a prompt; what else is left goes to prompts.

Without a target: each prompt that is computed or waits may make a step longer by a share of what
its decodes take, so that one prompt alone does not hold the streams up, and a queue is not slowed
for their sake.

Time is counted in steps: idle, nothing changes. Must not know sequences.
"""

from engine.config import EngineConfig
from engine.slow_limit import SlowLimit
from engine.step_time import StepTimeModel, StepWork

MIN_CONFIDENCE = 0.65
"""Of the model; below it limits stay as they are."""
_MARGIN_ERRORS = 2.5
"""Usual errors of the model by which a step aims below the target: streams of few tokens can't
average slow steps out."""
_MOST_MARGIN = 0.5
_CONTEXT_MEMORY_S = 10.0
_LONG_CONTEXT = 1 << 17
"""Where the configuration names none: more than that is no limit."""


class LoadLimits:
    """Owner of the step-time model and of the limits that follow from it."""

    def __init__(self, config: EngineConfig) -> None:
        self.model = StepTimeModel()
        self._target_s = config.tpot_target_s
        self._max_stretch = config.max_step_stretch
        self._min_prefill_tokens = config.min_prefill_chunk_tokens
        self._tokens = SlowLimit(config.max_num_batched_tokens)
        self._seqs = SlowLimit(config.max_num_seqs)
        self._context = SlowLimit(config.max_num_seqs * (config.max_model_len or _LONG_CONTEXT))
        self._busy_s = 0.0
        self._mean_context: float | None = None
        """Of a sequence that decodes."""

    @property
    def max_tokens(self) -> int:
        """Prompt tokens of a step beside which somebody decodes."""
        return self._tokens.value

    @property
    def max_seqs(self) -> int:
        """Sequences that may run."""
        return self._seqs.value

    @property
    def max_context_tokens(self) -> int | None:
        """Tokens that running sequences may have all together; ``None`` without a limit."""
        return None if self._context.value == self._context.most else self._context.value

    @property
    def is_limiting(self) -> bool:
        """Whether less is allowed than what is configured."""
        return any(limit.value < limit.most for limit in (self._tokens, self._seqs))

    def record(self, work: StepWork, time_s: float) -> None:
        """Take in a step that was carried out."""
        self.model.record(work, time_s)
        self._busy_s += time_s
        if work.num_decodes > 0:
            context = work.num_context_tokens / work.num_decodes
            old = context if self._mean_context is None else self._mean_context
            weight = min(1.0, time_s / _CONTEXT_MEMORY_S)
            self._mean_context = old + weight * (context - old)
        if self._target_s is not None and self._mean_context is not None and self._is_known:
            self._follow(self._target_s, self._mean_context)

    def prompt_tokens(self, decodes: StepWork, *, start: int, num_prompts: int, most: int) -> int:
        """How many tokens of prompts, up to ``most``, a step may have beside ``decodes``. The first
        prompt goes on at position ``start``, and ``num_prompts`` are computed or wait.
        """
        if decodes.num_decodes == 0:
            return most
        if self._target_s is not None and self.model.confidence > 0:
            time_s = self._aim_s(self._target_s)
            most = min(most, self.max_tokens)
        elif self._target_s is None and self._max_stretch is not None and self.model.seen == 1:
            # However noisy the times are: whole chunks would be worse than any estimate.
            stretch = 1 + num_prompts * (self._max_stretch - 1)
            time_s = stretch * self.model.predict(decodes)
        else:
            return most
        return self.model.prefill_tokens_within(time_s, decodes, start=start, most=most)

    def spare_s(self, decodes: StepWork) -> float | None:
        """Time that a step may take beside ``decodes``, for other work than theirs; None: any."""
        if decodes.num_decodes == 0:
            return None
        if self._target_s is not None and self.model.confidence > 0:
            return max(0.0, self._aim_s(self._target_s) - self.model.predict(decodes))
        if self._target_s is None and self._max_stretch is not None and self.model.seen == 1:
            return (self._max_stretch - 1) * self.model.predict(decodes)
        return None

    @property
    def _is_known(self) -> bool:
        return self.model.confidence >= MIN_CONFIDENCE

    def _aim_s(self, target_s: float) -> float:
        return target_s / (1 + min(_MOST_MARGIN, _MARGIN_ERRORS * self.model.error))

    def _follow(self, target_s: float, mean_context: float) -> None:
        model, now_s = self.model, self._busy_s
        aim_s = self._aim_s(target_s)
        tokens = model.prefill_tokens_within(aim_s, StepWork(), start=0, most=self._tokens.most)
        self._tokens.follow(max(self._min_prefill_tokens, tokens), now_s)
        least_prefill_s = model.per_prefill_token_s * self._min_prefill_tokens
        decodes_s = max(0.0, aim_s - model.base_s - least_prefill_s)
        per_seq_s = model.per_decode_s + model.per_context_token_s * mean_context
        self._seqs.follow(_quotient(decodes_s, per_seq_s, self._seqs.most), now_s)
        # All that may run, at what they hold on average, take all the time that there is: fewer
        # may run if they hold more.
        contexts_s = max(0.0, decodes_s - model.per_decode_s * self._seqs.value)
        context = _quotient(contexts_s, model.per_context_token_s, self._context.most)
        self._context.follow(context, now_s)


def _quotient(dividend: float, divisor: float, most: int) -> int:
    return most if dividend >= divisor * most else int(dividend / divisor)
