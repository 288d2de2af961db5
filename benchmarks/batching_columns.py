"""The columns of the batching benchmark: what each is asked, and beside what it stands.

Must not know options or files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.batching_engine import SharedRunner
from benchmarks.batching_outcome import Outcome, summarize_column, summarize_ttft
from benchmarks.batching_policies import CONTINUOUS, POLICIES, STATIC, STATIC_COMPACT, Policy
from benchmarks.batching_run import PolicyRun, run_without_kv_cache
from benchmarks.batching_workload import Ask, LengthRange, draw_asks
from benchmarks.result import CaseResult
from engine.config import EngineConfig
from engine.engine import Engine

_NUM_SATURATING_ASKS = 8192
"""More than any run answers."""
_SHARE_OF_STATIC = 0.8
_MIN_SPEEDUP = 3.0
"""Promised of continuous over static batching."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    batch_size: int
    prompts: LengthRange
    outputs: LengthRange
    rounds: int
    saturated_s: float
    """Of each policy and round, at least."""
    arrivals_s: float
    """In which asks arrive, about."""
    pool_tokens: int
    """KV pool of the contiguous column and its reference."""
    num_recomputed: int
    """Asks without a KV cache."""
    recomputed_outputs: LengthRange

    @property
    def longest_request(self) -> int:
        return self.prompts.longest + self.outputs.longest


FULL = Scale(
    batch_size=32,
    prompts=LengthRange(16, 256),
    outputs=LengthRange(8, 800),
    rounds=2,
    saturated_s=10.0,
    arrivals_s=16.0,
    pool_tokens=12_288,
    num_recomputed=12,
    recomputed_outputs=LengthRange(8, 64),
)
SHORT = Scale(
    batch_size=4,
    prompts=LengthRange(8, 32),
    outputs=LengthRange(4, 40),
    rounds=1,
    saturated_s=0.5,
    arrivals_s=0.5,
    pool_tokens=192,
    num_recomputed=3,
    recomputed_outputs=LengthRange(2, 8),
)


class BatchingColumns:
    """Measures column after column on engines of one runner."""

    def __init__(
        self, shared: SharedRunner, config: EngineConfig, scale: Scale, *, seed: int
    ) -> None:
        self._shared = shared
        self._config = config
        self._scale = scale
        self._seed = seed
        self._engine = shared.make_engine(config)
        self.facts: dict[str, float] = {}
        """What else a reader must know of the load; complete when all is measured."""

    def measure(self) -> Iterator[CaseResult]:
        """The results, each as soon as it is known."""
        saturated = self._compare_saturated()
        speed_of = {policy: outcome.tokens_per_s for policy, outcome in saturated.items()}
        for policy, outcome in saturated.items():
            yield from summarize_column(policy.name, outcome)
        for policy, least in ((STATIC, _MIN_SPEEDUP), (STATIC_COMPACT, None)):
            yield CaseResult(
                case=f"continuous_over_{policy.name}",
                value=speed_of[CONTINUOUS] / speed_of[policy],
                unit="x",
                limit=least,
            )
        asks = self._arrivals(speed_of[STATIC])
        for policy in POLICIES:
            yield from summarize_ttft(policy.name, self._run(policy, asks).run_arrivals())
        yield from self._measure_no_kv_cache()
        yield from self._measure_contiguous()

    def _compare_saturated(self) -> dict[Policy, Outcome]:
        """In turns, so that all see the same machine."""
        asks = self._draw(_NUM_SATURATING_ASKS)
        outcomes: dict[Policy, list[Outcome]] = {policy: [] for policy in POLICIES}
        for index in range(self._scale.rounds):
            for policy, of_policy in outcomes.items():
                run = self._run(policy, asks[index * self._scale.batch_size :])
                of_policy.append(run.run_saturated(self._scale.saturated_s))
        return {policy: Outcome.total(of_policy) for policy, of_policy in outcomes.items()}

    def _arrivals(self, static_tokens_per_s: float) -> list[Ask]:
        sample = self._draw(_NUM_SATURATING_ASKS)
        mean_output_len = sum(ask.output_len for ask in sample) / len(sample)
        asks_per_s = _SHARE_OF_STATIC * static_tokens_per_s / mean_output_len
        num_asks = max(self._scale.batch_size, round(asks_per_s * self._scale.arrivals_s))
        self.facts |= {"arrivals_per_s": asks_per_s, "num_arrivals": num_asks}
        return self._draw(num_asks, asks_per_s=asks_per_s)

    def _measure_no_kv_cache(self) -> list[CaseResult]:
        scale = self._scale
        asks = draw_asks(
            scale.num_recomputed,
            prompts=scale.prompts,
            outputs=scale.recomputed_outputs,
            seed=self._seed,
        )
        reference = self._run(CONTINUOUS, asks).run_to_end()
        forgetful = self._shared.make_engine(
            self._config.model_copy(update={"prefix_caching": False})
        )
        outcome = run_without_kv_cache(self._shared, forgetful, asks, batch_size=scale.batch_size)
        return summarize_column(
            "no_kv_cache", outcome, peer="continuous, the same asks", reference=reference
        )

    def _measure_contiguous(self) -> list[CaseResult]:
        scale, shared = self._scale, self._shared
        num_blocks = shared.num_blocks_of(scale.pool_tokens)
        num_places = num_blocks // shared.num_blocks_of(scale.longest_request)
        self.facts["contiguous_places"] = num_places
        contiguous = self._config.model_copy(update={"max_num_seqs": num_places})
        asks = self._draw(_NUM_SATURATING_ASKS)
        paged_outcome, contiguous_outcome = (
            self._run(
                CONTINUOUS, asks, shared.make_engine(config, num_blocks=num_blocks)
            ).run_saturated(scale.saturated_s)
            for config in (self._config, contiguous)
        )
        return summarize_column(
            "contiguous_kv",
            contiguous_outcome,
            peer="paged KV, the same pool",
            reference=paged_outcome,
        )

    def _run(self, policy: Policy, asks: Sequence[Ask], engine: Engine | None = None) -> PolicyRun:
        return PolicyRun(
            self._shared,
            engine or self._engine,
            policy,
            asks,
            batch_size=self._scale.batch_size,
        )

    def _draw(self, num_asks: int, *, asks_per_s: float | None = None) -> list[Ask]:
        scale = self._scale
        return draw_asks(
            num_asks,
            prompts=scale.prompts,
            outputs=scale.outputs,
            seed=self._seed,
            asks_per_s=asks_per_s,
        )
