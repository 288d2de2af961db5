"""What `headwater bench` measures: the speed of one decode and of one prefill, and where their time
goes.

Speeds are of steps that nothing records. Must not know the command line.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments.offline_engine import OfflineEngine
from engine.errors import EngineConfigError, EngineError
from engine.profile import MAX_TIMEOUT_S, Profile, ProfileOrder

NUM_PREFILLS = 3
_NUM_SETTLING_STEPS = 3
"""After the last prefill, before steps count."""
_PREFILL_TOKENS = 2
"""One more than is waited for: the request is still there to be ended."""


@dataclass(frozen=True, slots=True)
class BenchCase:
    """How much is run."""

    batch: int
    """Sequences that decode side by side."""
    context: int
    """Tokens of each when the decode begins."""
    steps: int
    prefill: int
    """Tokens of the prompt whose prefill is measured."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one kind of work."""

    tokens_per_s: float
    time_s: float
    """Median: of a decode step, or of a whole prefill."""


def check_case(case: BenchCase, engine: OfflineEngine) -> None:
    """Raises `EngineConfigError` if the engine can't hold it."""
    num_decoded = _num_decoded(engine, case)
    decoded_len = case.context + num_decoded
    prefilled_len = case.prefill + _PREFILL_TOKENS
    decoded = (
        f"a sequence (--context {case.context}, and {num_decoded} tokens that it decodes: "
        f"{case.steps} of --steps, the others while the rest of --batch {case.batch} is prefilled, "
        "and before steps count)"
    )
    prefilled = f"the prompt (--prefill {case.prefill}) with the {_PREFILL_TOKENS} of its answer"
    for num_tokens, what, options in (
        (decoded_len, decoded, "--context, --steps or --batch"),
        (prefilled_len, prefilled, "--prefill"),
    ):
        if num_tokens > engine.max_request_tokens:
            raise EngineConfigError(
                f"{what} would have {num_tokens} tokens, but the engine holds at most "
                f"{engine.max_request_tokens} of one (as far as the model, max_model_len and "
                f"kv_cache_bytes go): lower {options}."
            )
    if case.batch * decoded_len > engine.num_kv_tokens:
        raise EngineConfigError(
            f"{case.batch} sequences of {decoded_len} tokens are more than the KV pool holds "
            f"({engine.num_kv_tokens}): lower --batch or --context, or bench a file with a larger "
            "kv_cache_bytes."
        )


def measure_decode(
    engine: OfflineEngine, case: BenchCase, clock: Callable[[], float] = time.perf_counter
) -> Speed:
    """On an idle engine, which is idle afterwards."""
    running = _fill(engine, case)
    times_s = []
    for _ in range(case.steps):
        started_s = clock()
        _decode(engine, case)
        times_s.append(clock() - started_s)
    engine.abort(running)
    return Speed(case.batch * case.steps / sum(times_s), statistics.median(times_s))


def measure_prefill(
    engine: OfflineEngine, case: BenchCase, clock: Callable[[], float] = time.perf_counter
) -> Speed:
    """The median of a few prompts, one after the other."""
    times_s = []
    for _ in range(NUM_PREFILLS):
        started_s = clock()
        _prefill(engine, case)
        times_s.append(clock() - started_s)
        engine.abort({"prefill"})
    time_s = statistics.median(times_s)
    return Speed(case.prefill / time_s, time_s)


def record_decode(engine: OfflineEngine, case: BenchCase) -> Profile:
    running = _fill(engine, case)
    engine.start_recording(ProfileOrder(case.steps, MAX_TIMEOUT_S))
    for _ in range(case.steps):
        _decode(engine, case)
    profile = engine.recording()
    engine.abort(running)
    return profile


def record_prefill(engine: OfflineEngine, case: BenchCase) -> Profile:
    """All steps of one prompt, which may be several chunks."""
    num_steps = _prefill(engine, case)
    engine.abort({"prefill"})
    engine.start_recording(ProfileOrder(num_steps, MAX_TIMEOUT_S))
    _prefill(engine, case)
    profile = engine.recording()
    engine.abort({"prefill"})
    return profile


def _fill(engine: OfflineEngine, case: BenchCase) -> set[str]:
    """Start the batch and let it settle; returns the requests' ids."""
    running = {f"decode-{index}" for index in range(case.batch)}
    for request_id in sorted(running):
        engine.add(request_id, case.context, _num_decoded(engine, case))
    waiting = set(running)
    while waiting:
        waiting -= engine.step()[0]
    for _ in range(_NUM_SETTLING_STEPS):
        _decode(engine, case)
    return running


def _decode(engine: OfflineEngine, case: BenchCase) -> None:
    answered, _ = engine.step()
    if len(answered) != case.batch:
        raise EngineError(
            f"a step gave tokens to {len(answered)} of {case.batch} sequences: the limits of a "
            "step, or its memory, are too small for all of them"
        )


def _prefill(engine: OfflineEngine, case: BenchCase) -> int:
    """Until its first token; returns how many steps computed something."""
    engine.add("prefill", case.prefill, _PREFILL_TOKENS)
    num_steps = 0
    while True:
        answered, record = engine.step()
        num_steps += record is not None
        if answered:
            return num_steps


def _num_decoded(engine: OfflineEngine, case: BenchCase) -> int:
    """Tokens of each, with those that the first ones decode while the last ones are prefilled."""
    num_prompt_tokens = case.batch * case.context
    num_fill_steps = math.ceil(num_prompt_tokens / engine.prompt_tokens_beside(case.batch)) + 1
    return num_fill_steps + _NUM_SETTLING_STEPS + case.steps + 1
