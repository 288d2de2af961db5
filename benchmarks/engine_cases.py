"""The cases of the offline engine benchmark, and how one of them is measured.

The engine is driven step by step in this process: no HTTP, no channel. After every step the matrix
work of the same step is timed alone, so that both see the same machine.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec

from benchmarks.matrix_work import MatrixWork
from benchmarks.statistics import percentile
from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.config import EngineConfig
from engine.engine import Engine, StepOutput
from engine.messages import EngineRequest, SamplingParams

_CONTEXT_LEN = 128
_NUM_DECODE_STEPS = 32
_REQUEST_TIMEOUT_S = 3600.0

P = ParamSpec("P")


class EngineFailure(Exception):
    """The engine failed on a request of the benchmark."""


@dataclass(frozen=True, slots=True)
class Case:
    """``num_seqs`` prompts of ``prompt_len``; timed while they decode, or until each has its first
    token."""

    name: str
    num_seqs: int
    prompt_len: int
    is_decode: bool


CASES = (
    # The context grows while it is measured: it is _CONTEXT_LEN halfway.
    *(
        Case(f"decode_bs{n}", n, _CONTEXT_LEN - _NUM_DECODE_STEPS // 2, is_decode=True)
        for n in (1, 4, 16, 64)
    ),
    Case("prefill_512", 1, 512, is_decode=False),
    Case("prefill_2048", 1, 2048, is_decode=False),
    Case("prefill_8x512", 8, 512, is_decode=False),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a case."""

    tokens_per_s: float
    step_s: float
    """Median."""
    limit_tokens_per_s: float
    """Of the matrix work alone."""


class EngineDriver:
    """Owner of the engine under test and of the prompts."""

    def __init__(
        self, engine: Engine, config: EngineConfig, *, vocab_size: int, work: MatrixWork, seed: int
    ) -> None:
        self._engine = engine
        self._config = config
        self._vocab_size = vocab_size
        self._work = work
        self._random = random.Random(seed)
        self._root = root_key(KeySalt("benchmark", config.dtype, config.block_size_tokens, ""))

    def measure(self, case: Case) -> Measurement:
        return self._measure_decode(case) if case.is_decode else self._measure_prefill(case)

    def _measure_decode(self, case: Case) -> Measurement:
        # The first sequences decode while the last ones prefill.
        self._start(case, max_tokens=_NUM_DECODE_STEPS + 2 * case.num_seqs + 8)
        waiting = {str(index) for index in range(case.num_seqs)}
        while waiting:
            waiting -= {delta.request_id for delta in self._step().deltas if delta.token_ids}
        inputs = self._work.prepare(case.num_seqs)
        step_times, work_times = [], []
        for _ in range(_NUM_DECODE_STEPS):
            step_times.append(_timed(self._step))
            work_times.append(_timed(self._work.run, inputs, case.num_seqs))
        self._stop(case)
        step_s = percentile(step_times, 50.0)
        return Measurement(
            tokens_per_s=case.num_seqs / step_s,
            step_s=step_s,
            limit_tokens_per_s=case.num_seqs / percentile(work_times, 50.0),
        )

    def _measure_prefill(self, case: Case) -> Measurement:
        self._start(case, max_tokens=1)
        num_tokens = case.num_seqs * case.prompt_len
        step_times, work_times = [], []
        start = 0
        while self._engine.has_work:
            step_times.append(_timed(self._step))
            end = min(start + self._config.max_num_batched_tokens, num_tokens)
            num_sampled = end // case.prompt_len - start // case.prompt_len
            inputs = self._work.prepare(end - start)
            work_times.append(_timed(self._work.run, inputs, num_sampled))
            start = end
        if start < num_tokens:
            raise EngineFailure("prefill took fewer steps than the token budget allows")
        return Measurement(
            tokens_per_s=num_tokens / sum(step_times),
            step_s=percentile(step_times, 50.0),
            limit_tokens_per_s=num_tokens / sum(work_times),
        )

    def _start(self, case: Case, *, max_tokens: int) -> None:
        for index in range(case.num_seqs):
            prompt = [self._random.randrange(self._vocab_size) for _ in range(case.prompt_len)]
            keys: list[bytes] = list(block_keys(self._root, prompt, self._config.block_size_tokens))
            sampling = SamplingParams(max_tokens, temperature=0.0)
            self._engine.add(
                EngineRequest(str(index), prompt, self._root, keys, sampling, _REQUEST_TIMEOUT_S)
            )

    def _stop(self, case: Case) -> None:
        for index in range(case.num_seqs):
            self._engine.abort(str(index))
        while self._engine.has_work:
            self._step()

    def _step(self) -> StepOutput:
        output = self._engine.step()
        for delta in output.deltas:
            if delta.error is not None:
                raise EngineFailure(f"request {delta.request_id}: {delta.error}")
        return output


def _timed(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    started_s = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - started_s
