"""Counts what is asked of one model and what its engines do about it, for the autoscaler.

Costs well under a microsecond per delta. Must not know engines, nor what is done about demand.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from app.autoscaling_messages import (
    BUCKETS_PER_OCTAVE,
    NUM_LENGTH_BUCKETS,
    NUM_TIME_BUCKETS,
    EngineSeen,
    ModelDemand,
)
from app.queue import Job

_PER_NEPER = BUCKETS_PER_OCTAVE / math.log(2)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits now."""

    num_jobs: int
    num_tokens: int
    """Of their prompts."""
    oldest_wait_s: float


class LogHistogram:
    """As ``app.autoscaling_messages`` describes its histograms."""

    __slots__ = ("_counts",)

    def __init__(self, num_buckets: int) -> None:
        self._counts = [0] * num_buckets

    def add(self, value: float) -> None:
        """In its unit; anything up to one unit counts as one."""
        if value <= 1.0:
            self._counts[0] += 1
            return
        # Rounding must not lift a bucket's own bound into the next one.
        bucket = math.ceil(_PER_NEPER * math.log(value) - 1e-9)
        self._counts[min(bucket, len(self._counts) - 1)] += 1

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self._counts)


class DemandMeter:
    """Of one model at this gateway, since it started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_arrived = 0
        self._num_refused = 0
        self._num_prompt_tokens = 0
        self._num_uncached_tokens = 0
        self._num_begun = 0
        self._num_begun_tokens = 0
        self._num_generated_tokens = 0
        self._num_ended = 0
        self._ttft_ms = LogHistogram(NUM_TIME_BUCKETS)
        self._tpot_ms = LogHistogram(NUM_TIME_BUCKETS)
        self._prompt_tokens = LogHistogram(NUM_LENGTH_BUCKETS)
        self._answer_tokens = LogHistogram(NUM_LENGTH_BUCKETS)
        self._unread_since_s: dict[object, float] = {}
        """Of requests that wait for a first engine, whose tokenizer their prompts need."""

    def arrived(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            num_tokens = len(job.prompt.token_ids)
            self._num_arrived += 1
            self._num_prompt_tokens += num_tokens
            self._prompt_tokens.add(num_tokens)

    def refused(self, num_jobs: int) -> None:
        """Of those that arrived."""
        self._num_refused += num_jobs

    @contextmanager
    def waiting_unread(self) -> Iterator[None]:
        """While a request waits whose prompt nobody can read yet: as long as this it waits, and if
        it ends by an exception it was refused.
        """
        key = object()
        self._unread_since_s[key] = self._clock()
        try:
            yield
        except Exception:
            self._num_arrived += 1
            self._num_refused += 1
            raise
        finally:
            del self._unread_since_s[key]

    def generated(self, job: Job, num_tokens: int) -> None:
        """An engine said more of ``job``'s answer."""
        now_s = self._clock()
        self._num_generated_tokens += num_tokens
        job.num_answer_tokens += num_tokens
        job.last_token_s = now_s
        if job.first_token_s is None:
            self.begun(job)

    def begun(self, job: Job) -> None:
        """``job`` has its first token, or its prompt is computed if it wants none; once each."""
        if job.first_token_s is not None:
            return
        job.first_token_s = self._clock()
        num_tokens = len(job.prompt.token_ids) - job.num_generated
        self._num_begun += 1
        self._num_begun_tokens += num_tokens
        self._num_uncached_tokens += max(0, num_tokens - (job.num_cached_tokens or 0))
        self._ttft_ms.add(1000.0 * (job.first_token_s - job.arrived_s))

    def ended(self, job: Job) -> None:
        """With its last delta, or amid an answer that nobody could go on with."""
        self._num_ended += 1
        num_tokens = job.num_answer_tokens / job.num_samples
        self._answer_tokens.add(num_tokens)
        if job.first_token_s is not None and num_tokens >= 2:
            span_s = job.last_token_s - job.first_token_s
            self._tpot_ms.add(1000.0 * span_s / (num_tokens - 1))

    def demand(self, model: str, waiting: Waiting, engines: Sequence[EngineSeen]) -> ModelDemand:
        """What this gateway has to tell of ``model``."""
        now_s = self._clock()
        unread_waits_s = [now_s - since_s for since_s in self._unread_since_s.values()]
        return ModelDemand(
            model=model,
            num_arrived=self._num_arrived,
            num_refused=self._num_refused,
            num_prompt_tokens=self._num_prompt_tokens,
            num_uncached_tokens=self._num_uncached_tokens,
            num_begun=self._num_begun,
            num_cached_known_tokens=self._num_begun_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_ended=self._num_ended,
            num_waiting=waiting.num_jobs + len(unread_waits_s),
            num_waiting_tokens=waiting.num_tokens,
            oldest_wait_s=max([waiting.oldest_wait_s, *unread_waits_s, 0.0]),
            ttft_counts=self._ttft_ms.counts,
            tpot_counts=self._tpot_ms.counts,
            prompt_counts=self._prompt_tokens.counts,
            answer_counts=self._answer_tokens.counts,
            engines=tuple(engines),
        )
