"""What stands in for an engine when only the wire is measured: answers by script.

Speaks as ``engine.engine.Engine`` does to the step loop, with the deltas, notes, records and cache
events that a real one has, and computes nothing. Must not know processes or sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.wire_count import DeliveryCount
from engine.config import EngineConfig
from engine.messages import (
    KEY_STRIDE,
    CacheEvents,
    EngineRequest,
    FinishReason,
    LoadView,
    TimelineEvent,
    TokenDelta,
    Usage,
)
from engine.observations import EngineStats, RequestNote, StepRecord
from engine.step_output import StepOutput

PREFILL_TOKENS_PER_S = 1e6
"""So fast that credits never wait for prompts."""
NUM_BLOCKS = 25_000
MAX_STEPS_UNDERWAY = 8
"""Of a saturated run. Without a bound the script would run ahead until its streams have ended, one
after the other, in frames with little in them."""
_RECHECK_S = 0.001
"""What so many steps take at least, so that the core always has something to do."""
_FIRST_TOKEN_ID = 100_000
"""Tokens of a large vocabulary: the ids of most take as many bytes."""


@dataclass(slots=True, eq=False)
class _Stream:
    request: EngineRequest
    submit_us: int
    num_tokens: int = 0


class ScriptedEngine:
    """Each step gives every stream one token; the first one of an answer is no token, but the
    microseconds from the gateway's submit, which it noted in the request's timeline, until here.
    """

    def __init__(
        self,
        config: EngineConfig,
        delivered: DeliveryCount | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Saturated (a step takes no time), it waits while too much is not ``delivered`` yet."""
        self.num_failed_steps = 0
        self._delivered = delivered
        self._period_s = config.paced.step_base_s
        self._max_num_seqs = config.max_num_seqs
        self._clock = clock
        self._live: dict[str, _Stream] = {}
        self._due_s = 0.0
        self._num_steps = 0
        self._num_tokens = 0
        self._num_prompt_tokens = 0
        self._num_events = 0
        self._stored: list[bytes] = []
        self._evicted: list[bytes] = []
        self._notes: list[RequestNote] = []

    @property
    def wait_s(self) -> float | None:
        """Until the next step; None if there is nothing to do."""
        if not self._live:
            return None
        if self._period_s > 0 or self._delivered is None:
            return max(0.0, self._due_s - self._clock())
        num_underway = self._num_tokens - self._delivered.value
        return _RECHECK_S if num_underway >= MAX_STEPS_UNDERWAY * len(self._live) else 0.0

    @property
    def has_work(self) -> bool:
        return self.wait_s == 0.0

    def add(self, request: EngineRequest) -> None:
        now_s = self._clock()
        submit_us = round((now_s - request.timeline[-1].at_s) * 1e6)
        if not self._live:
            self._due_s = now_s
        self._live[request.request_id] = _Stream(request, submit_us)
        self._num_prompt_tokens += len(request.token_ids)
        self._stored += request.block_keys[KEY_STRIDE - 1 :: KEY_STRIDE]
        self._note(request, "taken")
        self._note(request, "admitted")
        self._note(request, "chunk", len(request.token_ids))

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        """Only the end of a gateway comes here, which ends the run, too."""
        self._live.clear()

    tiers = None

    def poll_tiers(self) -> list[CacheEvents]:
        """There are no tiers."""
        return []

    def audit_slice(self) -> bool:
        """A loop that waits for its next step is not idle."""
        return bool(self._live)

    def step(self) -> StepOutput:
        self._due_s += self._period_s
        self._num_steps += 1
        deltas = [self._next_delta(stream) for stream in self._live.values()]
        for delta in deltas:
            if delta.finish_reason is not None:
                self._end(self._live.pop(delta.request_id))
        self._num_tokens += len(deltas)
        notes, self._notes = self._notes, []
        return StepOutput(
            deltas,
            self._take_events(),
            self._load_view(),
            EngineStats(self._num_steps, self._num_steps * self._period_s),
            self._record(len(deltas)),
            notes,
        )

    def _next_delta(self, stream: _Stream) -> TokenDelta:
        request = stream.request
        stream.num_tokens += 1
        if stream.num_tokens == 1:
            self._note(request, "first_token")
            return TokenDelta(request.request_id, [stream.submit_us], usage=_usage(stream))
        token_id = _FIRST_TOKEN_ID + stream.num_tokens
        if stream.num_tokens < request.sampling.max_tokens:
            return TokenDelta(request.request_id, [token_id])
        return TokenDelta(request.request_id, [token_id], FinishReason.LENGTH, usage=_usage(stream))

    def _end(self, stream: _Stream) -> None:
        self._evicted += stream.request.block_keys[KEY_STRIDE - 1 :: KEY_STRIDE]
        self._note(stream.request, "last_token", stream.num_tokens)
        self._note(stream.request, "blocks_freed", len(stream.request.block_keys))

    def _note(self, request: EngineRequest, kind: str, value: int = 0) -> None:
        self._notes.append(RequestNote(request.request_id, TimelineEvent(kind, 0.5, value)))

    def _take_events(self) -> CacheEvents | None:
        if not self._stored and not self._evicted:
            return None
        self._num_events += 1
        events = CacheEvents(self._num_events, self._stored, self._evicted)
        self._stored, self._evicted = [], []
        return events

    def _load_view(self) -> LoadView:
        return LoadView(
            num_running=len(self._live),
            num_free_blocks=NUM_BLOCKS // 2,
            num_blocks=NUM_BLOCKS,
            prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
            step_time_s=self._period_s,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_tokens,
            mean_answer_s=4.5,
        )

    def _record(self, num_decodes: int) -> StepRecord:
        return StepRecord(
            step_id=self._num_steps,
            started_s=self._due_s,
            step_time_s=self._period_s,
            num_prefill_tokens=0,
            num_decodes=num_decodes,
            num_running=len(self._live),
            num_waiting=0,
            num_admitted=0,
            num_preempted=0,
            num_finished=0,
            num_used_blocks=NUM_BLOCKS // 2,
            max_tokens=2048,
            max_seqs=self._max_num_seqs,
        )


def _usage(stream: _Stream) -> Usage:
    return Usage(len(stream.request.token_ids), 0, stream.num_tokens)
