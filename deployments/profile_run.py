"""What `headwater profile` measures: the times of steps over a grid of prompt tokens, decodes and
contexts.

Each point is steps of one kind on an engine of this process; the median counts. What a step
computed is reckoned from the requests, as the engine itself does. Must not know the command line.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deployments.offline_engine import OfflineEngine
from engine.errors import EngineConfigError, EngineError
from engine.observations import StepRecord
from engine.performance_profile import StepSample

_NUM_WARM_UP_STEPS = 3
_POOL_SHARE = 0.9
"""The last block of each sequence is filled in part."""


@dataclass(frozen=True, slots=True)
class ProfileGrid:
    """What is measured: each combination, as far as the KV pool holds it."""

    prefills: tuple[int, ...]
    """Prompt tokens of a step."""
    decodes: tuple[int, ...]
    """Sequences that decode in a step."""
    contexts: tuple[int, ...]
    """Tokens of each of those when they begin."""
    num_steps: int
    """With decodes alone, per point."""
    num_prompts: int
    """Per point with prompt tokens."""

    @property
    def max_step_tokens(self) -> int:
        """A token budget that every step of the grid fits in, one that loads prompts as well."""
        return max(self.prefills) + max(self.decodes)


def measure_grid(
    engine: OfflineEngine, grid: ProfileGrid, said: Callable[[str], None]
) -> list[StepSample]:
    """On an idle engine, which is idle afterwards. ``said`` is told of points that don't fit.

    Raises `EngineConfigError` if nothing fits.
    """
    points = [(context, n) for context in grid.contexts for n in grid.decodes]
    held = [(context, n) for context, n in points if _fits(engine, grid, n, context)]
    if not held:
        raise EngineConfigError(
            f"the KV pool holds {engine.num_kv_tokens} tokens and a request at most "
            f"{engine.max_request_tokens}: lower --decodes, --context or --prefill, or profile a "
            "file with a larger kv_cache_bytes"
        )
    num_left_out = len(points) - len(held)
    if num_left_out:
        said(f"{num_left_out} of {len(points)} pairs of decodes and context don't fit the KV pool")
    _Steps(engine, 0, 0, 0).prompt(max(grid.prefills))  # touches memory, starts threads
    samples = list(_prompts_alone(engine, grid))
    for context, num_decodes in held:
        samples += _beside_decodes(engine, grid, num_decodes, context)
    return samples


def _prompts_alone(engine: OfflineEngine, grid: ProfileGrid) -> Iterator[StepSample]:
    """With nothing before them, and at the end of a long prompt, in steps as large as they get."""
    longest = max(c for c in (0, *grid.contexts) if _fits(engine, grid, 0, c))
    lengths = {*grid.prefills, longest + max(grid.prefills)}
    for length in sorted(lengths):
        runs = [_Steps(engine, 0, 0, 0).prompt(length) for _ in range(grid.num_prompts)]
        yield from (_median(list(steps)) for steps in zip(*runs, strict=True))


def _beside_decodes(
    engine: OfflineEngine, grid: ProfileGrid, num_decodes: int, context: int
) -> Iterator[StepSample]:
    steps = _Steps(engine, num_decodes, context, _num_decoded(grid, num_decodes, context))
    yield _median([steps.decode() for _ in range(grid.num_steps)])
    for length in grid.prefills:
        runs = [steps.prompt(length) for _ in range(grid.num_prompts)]
        yield from (_median(list(alike)) for alike in zip(*runs, strict=True))
    steps.end()


def _num_decoded(grid: ProfileGrid, num_decodes: int, context: int) -> int:
    """Tokens of each at most, those included that the first ones decode while the last ones are
    prefilled."""
    budget = grid.max_step_tokens - num_decodes
    num_fill_steps = math.ceil(num_decodes * context / budget) + num_decodes + _NUM_WARM_UP_STEPS
    num_prompt_steps = sum(math.ceil(length / budget) for length in grid.prefills)
    return num_fill_steps + grid.num_steps + grid.num_prompts * num_prompt_steps


def _fits(engine: OfflineEngine, grid: ProfileGrid, num_decodes: int, context: int) -> bool:
    longest_prompt = max(grid.prefills) + 1 + (0 if num_decodes else context)
    num_tokens = longest_prompt
    if num_decodes:
        length = context + _num_decoded(grid, num_decodes, context)
        num_tokens += num_decodes * length
        longest_prompt = max(longest_prompt, length)
    is_held = num_tokens <= _POOL_SHARE * engine.num_kv_tokens
    return is_held and longest_prompt <= engine.max_request_tokens


def _median(samples: list[StepSample]) -> StepSample:
    """Of steps that compute as much."""
    shapes = {(sample.num_prefill_tokens, sample.num_decodes) for sample in samples}
    assert len(shapes) == 1, f"steps of different kinds: {shapes}"
    first = samples[0]
    return StepSample(
        num_prefill_tokens=first.num_prefill_tokens,
        num_decodes=first.num_decodes,
        num_context_tokens=statistics.fmean(sample.num_context_tokens for sample in samples),
        num_attended_tokens=first.num_attended_tokens,
        time_s=statistics.median(sample.time_s for sample in samples),
        num_steps=len(samples),
    )


class _Steps:
    """Owner of the sequences that decode, and of what each has in its context."""

    def __init__(
        self, engine: OfflineEngine, num_decodes: int, context: int, num_decoded: int
    ) -> None:
        """Start them, and let them settle; they end by themselves after ``num_decoded`` tokens."""
        self._engine = engine
        self._num_answered = {f"decode-{index}": 0 for index in range(num_decodes)}
        self._context = context
        self._num_prompts = 0
        for request_id in self._num_answered:
            engine.add(request_id, context, num_decoded)
        while not all(self._num_answered.values()):
            self._step()
        for _ in range(_NUM_WARM_UP_STEPS if num_decodes else 0):
            self.decode()

    def decode(self) -> StepSample:
        """A step with nothing else in it."""
        num_context = self._num_context_tokens
        record = self._step()
        if record.num_prefill_tokens:
            raise EngineError("a step computed prompt tokens that nobody asked for")
        return self._sample(record, num_context, 0.0)

    def prompt(self, length: int) -> list[StepSample]:
        """All steps that compute one more prompt beside the decodes."""
        self._num_prompts += 1
        self._engine.add(f"prompt-{self._num_prompts}", length, 1)
        samples: list[StepSample] = []
        start = 0
        while start < length:
            num_context = self._num_context_tokens
            record = self._step()
            num_tokens = record.num_prefill_tokens
            if num_tokens == 0:
                raise EngineError("a step computed nothing of a prompt that waits: no KV is free")
            attended = num_tokens * (start + 0.5 * num_tokens)
            start += num_tokens
            samples.append(self._sample(record, num_context, attended))
        return samples

    def end(self) -> None:
        self._engine.abort(set(self._num_answered))

    @property
    def _num_context_tokens(self) -> int:
        # The newest token of each is written by the step that comes.
        num_written = sum(count - 1 for count in self._num_answered.values())
        return num_written + self._context * len(self._num_answered)

    def _step(self) -> StepRecord:
        answered, record = self._engine.step()
        for request_id in answered & self._num_answered.keys():
            self._num_answered[request_id] += 1
        if record is None:
            raise EngineError("a step computed nothing")
        return record

    def _sample(self, record: StepRecord, num_context: int, attended: float) -> StepSample:
        if record.num_decodes != len(self._num_answered):
            raise EngineError(
                f"a step decoded {record.num_decodes} of {len(self._num_answered)} sequences: its "
                "limits, or its memory, are too small for all of them"
            )
        return StepSample(
            num_prefill_tokens=record.num_prefill_tokens,
            num_decodes=record.num_decodes,
            num_context_tokens=float(num_context),
            num_attended_tokens=attended,
            time_s=record.step_time_s,
        )
