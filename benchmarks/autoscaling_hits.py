"""What a share of cached prompt tokens is worth: nodes, time to the first token and price per
million tokens at several of them, of the design case's replicas under a steady load.
"""

from collections.abc import Sequence

import msgspec

from benchmarks.autoscaling_day import SCALE, TPOT_TARGET_S, TTFT_TARGET_S, fewest
from benchmarks.result import CaseResult
from simulator.presets import PRICES
from simulator.scaling.day_fleet import DaySpec
from simulator.scaling.day_workload import BLOCK_TOKENS, ChatShape

HIT_RATES = (0.8, 0.4, 0.1, 0.0)
_NAMES = ("hits80", "hits40", "hits10", "hits0")
_PROMPT_TOKENS, _ANSWER_TOKENS = 3000, 400
_FULL_RPS = 5000.0
_TRIAL_S = 360.0
_DEVICES = 8
_USD_PER_HOUR = PRICES["h100"]


class HitFigures(msgspec.Struct, frozen=True):
    """At one share of hits."""

    hit_rate: float
    """As it came out: whole blocks are found again."""
    num_nodes: int
    """In the simulation."""
    num_nodes_full: float
    """For 5,000 requests/s."""
    ttft_p99_s: float
    tpot_p99_s: float
    usd_per_million_answer_tokens: float
    usd_per_million_tokens: float
    """Prompts and answers."""


def measure_hits(spec: DaySpec, rps: float = 4 * _FULL_RPS / SCALE) -> list[HitFigures]:
    """Prompts of one turn, that begin alike as far as they shall be found."""
    found: list[HitFigures] = []
    for hit_rate in HIT_RATES:
        num_shared = round(hit_rate * _PROMPT_TOKENS / BLOCK_TOKENS) * BLOCK_TOKENS
        shape = ChatShape(
            num_turns=1,
            num_system_prompts=1,
            num_system_tokens=num_shared,
            user_tokens=float(_PROMPT_TOKENS - num_shared),
            user_sigma=0.8,
            answer_tokens=float(_ANSWER_TOKENS),
        )
        first = found[-1].num_nodes if found else max(1, round(rps / 16))
        trial = fewest(shape, spec, rps, _TRIAL_S, first=first)
        per_hour = trial.num_replicas * _DEVICES * _USD_PER_HOUR
        answers_per_hour = rps * _ANSWER_TOKENS * 3600 / 1e6
        tokens_per_hour = rps * (_PROMPT_TOKENS + _ANSWER_TOKENS) * 3600 / 1e6
        found.append(
            HitFigures(
                trial.hit_rate,
                trial.num_replicas,
                trial.num_replicas * _FULL_RPS / rps,
                trial.ttft_p99_s,
                trial.tpot_p99_s,
                per_hour / answers_per_hour,
                per_hour / tokens_per_hour,
            )
        )
    return found


def hit_cases(measured: Sequence[HitFigures]) -> list[CaseResult]:
    results: list[CaseResult] = []
    for name, figures in zip(_NAMES, measured, strict=True):
        results += [
            CaseResult(case=f"{name}_rate", value=figures.hit_rate, unit="of prompt tokens"),
            CaseResult(case=f"{name}_nodes", value=figures.num_nodes_full, unit="nodes"),
            CaseResult(
                case=f"{name}_ttft_p99", value=figures.ttft_p99_s, unit="s", limit=TTFT_TARGET_S
            ),
            CaseResult(
                case=f"{name}_tpot_p99", value=figures.tpot_p99_s, unit="s", limit=TPOT_TARGET_S
            ),
            CaseResult(
                case=f"{name}_usd_per_million_answer_tokens",
                value=figures.usd_per_million_answer_tokens,
                unit="USD",
            ),
            CaseResult(
                case=f"{name}_usd_per_million_tokens",
                value=figures.usd_per_million_tokens,
                unit="USD",
            ),
        ]
    return results
