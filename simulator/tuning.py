"""Searches the settings of one engine that give the most tokens/s within limits on what users see.

Each setting is played on the virtual clock with the production scheduler: how many requests per
second it bears before a limit is broken is found by bisection. Settings that can't beat the best
one so far are left early: what they give when nobody looks at the limits bounds them. Must not know
files or command lines.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import ValidationError

from engine.config import EngineConfig
from simulator.errors import SimulationError
from simulator.fleet import FleetSpec, simulate
from simulator.outcome import Outcome
from simulator.replica_kind import ReplicaKind
from simulator.replica_spec import ReplicaSpec
from simulator.workload import Workload

_SLO = re.compile(r"(ttft|tpot)_(mean|p50|p90|p95|p99)_ms=([0-9.]+)")
_SLO_HELP = "ttft_ or tpot_, then mean, p50, p90, p95 or p99, then _ms=LIMIT, as in ttft_p95_ms=700"
_TRICKLE_PER_S = 1e-4
"""So few that requests don't meet."""
_ALL_AT_ONCE_PER_S = 1e9
_NUM_HALVINGS = 8
_SMALLEST_BATCH = 4
_SMALLEST_STEP_TOKENS = 64
_LEAST_GAIN = 1.01
"""Of a setting that replaces another: rates are found no more exactly."""


class TuningError(SimulationError):
    """What is asked for is wrong, or can't be had."""


class LimitsMissedError(TuningError):
    """Not even a request that is alone keeps the limits, whatever the setting."""


@dataclass(frozen=True, slots=True)
class Slo:
    """A limit on one figure."""

    figure: str
    """``ttft`` or ``tpot``."""
    of: str
    """``mean`` or a percentile."""
    limit_ms: float

    @property
    def name(self) -> str:
        return f"{self.figure}_{self.of}_ms"

    def measured_ms(self, outcome: Outcome) -> float:
        times = outcome.ttft_s if self.figure == "ttft" else outcome.tpot_s
        return 0.0 if times is None else 1000 * float(getattr(times, self.of))


def parse_slo(text: str) -> Slo:
    """``ttft_p95_ms=700``. Raises `TuningError`."""
    match = _SLO.fullmatch(text)
    try:
        slo = Slo(match[1], match[2], float(match[3])) if match else None
    except ValueError:
        slo = None
    if slo is None or slo.limit_ms <= 0:
        raise TuningError(f"{text!r} is no limit: write {_SLO_HELP}")
    return slo


class Setting(NamedTuple):
    """One way to run the engine."""

    kind: ReplicaKind
    max_num_seqs: int
    max_num_batched_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.kind.label}, {self.max_num_seqs} sequences, steps of "
            f"{self.max_num_batched_tokens} tokens"
        )


class Found(NamedTuple):
    """What a setting bears."""

    setting: Setting
    requests_per_s: float
    outcome: Outcome
    """At that rate."""

    @property
    def tokens_per_s(self) -> float:
        """Of answers, per device."""
        num_tokens = sum(request.num_answer_tokens for request in self.outcome.requests)
        mean = num_tokens / len(self.outcome.requests)
        return self.requests_per_s * mean / self.setting.kind.num_devices


def settings_of(
    kinds: Iterable[ReplicaKind], batches: Sequence[int], step_tokens: Sequence[int]
) -> list[Setting]:
    """Every combination; where none is given, powers of two up to what is known of the kind.

    Raises `TuningError` for a size that nothing is known of.
    """
    kinds = list(kinds)
    for kind in kinds:
        if max(batches, default=0) > kind.max_num_seqs:
            raise TuningError(
                f"{kind.label} is known with up to {kind.max_num_seqs} sequences, not with "
                f"{max(batches)}: lower --batch, or profile more --decodes"
            )
        if max(step_tokens, default=0) > kind.max_num_batched_tokens:
            raise TuningError(
                f"{kind.label} is known with steps of up to {kind.max_num_batched_tokens} tokens, "
                f"not of {max(step_tokens)}: lower --step-tokens, or profile a longer --prefill"
            )
    return [
        Setting(kind, batch, size)
        for kind in kinds
        for batch in batches or _doubled(_SMALLEST_BATCH, kind.max_num_seqs)
        for size in step_tokens or _doubled(_SMALLEST_STEP_TOKENS, kind.max_num_batched_tokens)
    ]


def _doubled(first: int, last: int) -> list[int]:
    sizes = [first << power for power in range(32) if first << power < last]
    return [*sizes, last]


class Search:
    """Of one workload, one set of limits."""

    def __init__(
        self,
        config: EngineConfig,
        slos: Sequence[Slo],
        workload_at: Callable[[float], Workload],
        *,
        margin: float = 0.0,
    ) -> None:
        """``config``: all that is not searched, the size of the KV pool as well. ``workload_at``:
        the same requests, so many per second. ``margin``: of each limit, that shall be left."""
        self._config = config
        self._slos = slos
        self._workload_at = workload_at
        self._share = 1.0 - margin
        self._longest_tokens = max(
            request.num_prompt_tokens + request.num_answer_tokens
            for request in workload_at(_TRICKLE_PER_S).requests
        )

    def run(self, settings: Sequence[Setting]) -> Found:
        """The best. Raises `LimitsMissedError`, or `TuningError` if a request fits no setting."""
        best: Found | None = None
        bounds = sorted(
            ((self._bound(setting), setting) for setting in settings),
            key=lambda pair: pair[0] / pair[1].kind.num_devices,
            reverse=True,
        )
        for most_per_s, setting in bounds:
            least_per_s = _TRICKLE_PER_S
            if best is not None:
                per_device = best.requests_per_s / best.setting.kind.num_devices
                least_per_s = per_device * setting.kind.num_devices * _LEAST_GAIN
            if most_per_s < least_per_s:
                continue
            found = self._search_rate(setting, least_per_s, most_per_s)
            best = found or best
        if best is None:
            raise self._miss(settings)
        return best

    def engine_settings(self, setting: Setting) -> dict[str, str | int | None]:
        """Keys of an engine's configuration, and what they become."""
        kv_bytes, most = self._config.kv_cache_bytes, setting.kind.max_kv_bytes
        return {
            **dict(setting.kind.settings),
            "kv_cache_bytes": kv_bytes if most is None else min(kv_bytes, most),
            "max_num_seqs": setting.max_num_seqs,
            "max_num_batched_tokens": setting.max_num_batched_tokens,
            "max_step_stretch": None,
            "tpot_target_s": None,
        }

    def play(self, setting: Setting, requests_per_s: float) -> Outcome:
        """What users see at that rate."""
        return self.play_these(setting, self._workload_at(requests_per_s))

    def play_these(self, setting: Setting, workload: Workload) -> Outcome:
        """What users see who ask for ``workload``."""
        return simulate(workload, FleetSpec(1, self._replica(setting), "round_robin"))

    def keeps(self, outcome: Outcome) -> bool:
        """Whether all limits are kept, and everybody is answered."""
        return outcome.num_refused == 0 and all(
            slo.measured_ms(outcome) <= slo.limit_ms * self._share for slo in self._slos
        )

    def _bound(self, setting: Setting) -> float:
        """Requests per second when all are there from the beginning; 0 if one is too long."""
        outcome = self._play_all(setting, _ALL_AT_ONCE_PER_S)
        return len(outcome.requests) / outcome.duration_s if outcome else 0.0

    def _play_all(self, setting: Setting, requests_per_s: float) -> Outcome | None:
        """None if a request is too long for it."""
        replica = self._replica(setting)
        longest = self._longest_tokens
        if longest > replica.num_kv_tokens or longest > (replica.config.max_model_len or longest):
            return None
        outcome = self.play(setting, requests_per_s)
        return None if outcome.num_refused else outcome

    def _search_rate(self, setting: Setting, least_per_s: float, most_per_s: float) -> Found | None:
        """The highest rate between the two that keeps the limits; None if the lower one doesn't."""
        outcome = self.play(setting, least_per_s)
        if not self.keeps(outcome):
            return None
        best = Found(setting, least_per_s, outcome)
        low, high = least_per_s, most_per_s
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            outcome = self.play(setting, middle)
            if self.keeps(outcome):
                best, low = Found(setting, middle, outcome), middle
            else:
                high = middle
        return best

    def _replica(self, setting: Setting) -> ReplicaSpec:
        kind = setting.kind
        settings = {**self._config.model_dump(), **self.engine_settings(setting)}
        try:
            config = EngineConfig.model_validate(settings)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise TuningError(f"{setting}: {reason}") from error
        num_kv_tokens = config.kv_cache_bytes // kind.kv_token_bytes
        return ReplicaSpec(kind.model, num_kv_tokens, config, num_devices=kind.num_devices)

    def _miss(self, settings: Sequence[Setting]) -> TuningError:
        """Names the setting that comes nearest, and by how much it misses."""
        nearest, least = "", math.inf
        for setting in settings:
            outcome = self._play_all(setting, _TRICKLE_PER_S)
            if outcome is None:
                continue
            ratios = [slo.measured_ms(outcome) / (slo.limit_ms * self._share) for slo in self._slos]
            if max(ratios) < least:
                least = max(ratios)
                nearest = f"{setting}: {self._describe_excess(outcome)}"
        if not nearest:
            return TuningError(
                "no setting holds the longest request: raise kv_cache_bytes or max_model_len"
            )
        return LimitsMissedError(
            f"no setting keeps the limits, even for a request that is alone. Nearest: {nearest}"
        )

    def _describe_excess(self, outcome: Outcome) -> str:
        parts = []
        for slo in self._slos:
            at_best, limit_ms = slo.measured_ms(outcome), slo.limit_ms * self._share
            if at_best > limit_ms:
                over = at_best - limit_ms
                parts.append(f"{slo.name} is {at_best:.4g} at best, {over:.4g} over {limit_ms:.4g}")
        return "; ".join(parts)
