"""An engine under more load than it can bear, in virtual time: what its streams and its operator
see.

The engine, its scheduler and its limits are those that serve; only the runner is paced. Steps vary
by some per cent, and now and then one takes twice its time, as where a core is taken away.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.statistics import percentile
from deployments.offline_requests import OfflineRequests
from engine.config import EngineConfig, PacedConfig
from engine.engine import Engine
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import EngineRequest
from engine.observations import StepRecord
from engine.paced_runner import PacedRunner
from engine.warm_up import warm_up

BLOCK_SIZE_TOKENS = 16
REVERSAL_WINDOW_S = 10.0
_VOCAB_SIZE = 50_000
_MAX_MODEL_LEN = 8192
_NUM_BLOCKS = 16_384
_GEOMETRY = KvGeometry((KvGroup((0,), None),), 1, 1, BLOCK_SIZE_TOKENS, 2)
_NOISE = 0.05
_SLOW_SHARE = 0.01

SMALL_CPU = PacedConfig(
    step_base_s=7.5e-3,
    per_decode_s=1.3e-4,
    per_prefill_token_s=2.5e-4,
    per_context_token_s=3e-7,
    per_attended_token_s=1.4e-7,
)
"""A model of 135M parameters on two cores: 16 decodes take 10 ms, prefill computes 4 tokens a
millisecond."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    arrival_s: float
    prompt_len: int
    output_len: int


@dataclass(slots=True)
class _Stream:
    first_s: float
    last_s: float
    num_tokens: int


@dataclass(slots=True)
class LoadOutcome:
    """What a run showed."""

    duration_s: float = 0.0
    num_generated: int = 0
    tpots_s: list[float] = field(default_factory=list)
    """Of the requests that ended and had more than one token."""
    gaps_s: list[float] = field(default_factory=list)
    """Between two tokens of a stream, over all streams."""
    ttfts_s: dict[str, float] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.num_generated / self.duration_s

    @property
    def tpot_p99_s(self) -> float:
        return percentile(self.tpots_s, 99.0)

    @property
    def most_reversals(self) -> int:
        """Turns of one limit within ten seconds, at most."""
        limits = (
            [(r.started_s, r.max_tokens) for r in self.records],
            [(r.started_s, r.max_seqs) for r in self.records],
            [(r.started_s, r.max_context_tokens or 0) for r in self.records],
        )
        return max(_most_turns(limit) for limit in limits)


class VirtualEngine:
    """An engine on a clock that only its steps advance."""

    def __init__(self, config: EngineConfig, *, seed: int, is_noisy: bool = True) -> None:
        self.now_s = 0.0
        self._is_noisy = is_noisy
        self._config = config
        self._noise = random.Random(f"{seed}/noise")
        self._draw = random.Random(f"{seed}/prompts")
        runner = PacedRunner(
            config.paced,
            num_blocks=_NUM_BLOCKS,
            block_size_tokens=BLOCK_SIZE_TOKENS,
            vocab_size=_VOCAB_SIZE,
            eos_token_ids=(),
            sleep=self._sleep,
            clock=self._clock,
        )
        self._engine = Engine(
            config,
            geometry=_GEOMETRY,
            num_blocks=_NUM_BLOCKS,
            max_model_len=_MAX_MODEL_LEN,
            vocab_size=_VOCAB_SIZE,
            runner=runner,
            clock=self._clock,
        )
        warm_up(
            self._engine,
            config,
            max_len=_MAX_MODEL_LEN,
            vocab_size=_VOCAB_SIZE,
            limit_s=10.0,
            clock=self._clock,
        )

    def run(self, asks: Sequence[Ask], *, until_s: float | None = None) -> LoadOutcome:
        """Answer ``asks``, in order of arrival; stop when they end, or after ``until_s``."""
        outcome, streams = LoadOutcome(), dict[str, _Stream]()
        start_s = self.now_s
        arrivals = {f"{index}": start_s + ask.arrival_s for index, ask in enumerate(asks)}
        waiting = self._requests(asks)
        coming = next(waiting, None)
        end_s = float("inf") if until_s is None else start_s + until_s
        while self.now_s < end_s and (coming is not None or self._engine.has_work):
            if coming is not None and not self._engine.has_work:
                self.now_s = max(self.now_s, arrivals[coming.request_id])
            while coming is not None and arrivals[coming.request_id] <= self.now_s:
                self._engine.add(coming)
                coming = next(waiting, None)
            self._step(outcome, streams, arrivals)
        outcome.duration_s = self.now_s - start_s
        return outcome

    def _step(
        self, outcome: LoadOutcome, streams: dict[str, _Stream], arrivals: dict[str, float]
    ) -> None:
        output = self._engine.step()
        if output.record is not None:
            outcome.records.append(output.record)
        for delta in output.deltas:
            num_tokens = len(delta.token_ids)
            outcome.num_generated += num_tokens
            stream = streams.get(delta.request_id)
            if stream is None:
                streams[delta.request_id] = _Stream(self.now_s, self.now_s, num_tokens)
                outcome.ttfts_s[delta.request_id] = self.now_s - arrivals[delta.request_id]
                continue
            outcome.gaps_s.append(self.now_s - stream.last_s)
            stream.last_s = self.now_s
            stream.num_tokens += num_tokens
            if delta.finish_reason is not None and stream.num_tokens > 1:
                outcome.tpots_s.append((self.now_s - stream.first_s) / (stream.num_tokens - 1))

    def _requests(self, asks: Sequence[Ask]) -> Iterator[EngineRequest]:
        requests = OfflineRequests(BLOCK_SIZE_TOKENS)
        for index, ask in enumerate(asks):
            token_ids = self._draw.choices(range(_VOCAB_SIZE), k=ask.prompt_len)
            yield requests.make(f"{index}", token_ids, ask.output_len)

    def _clock(self) -> float:
        return self.now_s

    def _sleep(self, duration_s: float) -> None:
        if not self._is_noisy:
            self.now_s += duration_s
            return
        slow = 2.0 if self._noise.random() < _SLOW_SHARE else 1.0
        self.now_s += duration_s * slow * max(0.5, self._noise.gauss(1.0, _NOISE))


def chat_asks(num_asks: int, *, rate_per_s: float, seed: int, scale: float = 1.0) -> list[Ask]:
    """Poisson arrivals; log-normal prompts (median 200 tokens, times ``scale``) and answers (of
    60 tokens).
    """
    draw = random.Random(f"{seed}/asks")
    arrival_s, asks = 0.0, []
    for _ in range(num_asks):
        arrival_s += draw.expovariate(rate_per_s)
        prompt_len = min(4000, max(1, round(200 * scale * draw.lognormvariate(0.0, 0.8))))
        output_len = min(400, max(2, round(60 * draw.lognormvariate(0.0, 0.7))))
        asks.append(Ask(arrival_s, prompt_len, output_len))
    return asks


def _most_turns(limit: Sequence[tuple[float, int]]) -> int:
    turns_s: list[float] = []
    last, is_rising = limit[0][1], False
    has_moved = False
    for at_s, value in limit:
        if value == last:
            continue
        if has_moved and (value > last) != is_rising:
            turns_s.append(at_s)
        has_moved, is_rising, last = True, value > last, value
    return max(
        (sum(s <= t < s + REVERSAL_WINDOW_S for t in turns_s) for s in turns_s),
        default=0,
    )
