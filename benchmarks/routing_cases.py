"""Figures of routing replays as cases of a result file. Must not know how they were measured."""

from collections.abc import Mapping

from benchmarks.result import CaseResult
from benchmarks.routing_scenarios import Joined, Lost, SharedPrompt
from benchmarks.statistics import PairedRatio
from simulator.outcome import Outcome
from simulator.policies.registry import POLICIES

OURS = "headwater"
UNDER_S = 2.0
MAX_IMBALANCE = 1.1
MIN_SHARE_OF_CEILING = 0.95


def best_published(outcomes: Mapping[str, Outcome]) -> str:
    """By mean TTFT, of the policies that some router ships."""
    shipped = [name for name in outcomes if POLICIES[name].is_published]
    return min(shipped, key=lambda name: outcomes[name].ttft_s.mean)


def replay_cases(
    title: str,
    outcomes: Mapping[str, Outcome],
    bound: Outcome,
    promised_ttft_s: float | None,
    ratio: PairedRatio,
) -> list[CaseResult]:
    """All policies side by side; ours beside the best published one and what is promised of it.

    ``ratio``: of both, over several draws of the traffic.
    """
    best = best_published(outcomes)
    cases = []
    for name, outcome in outcomes.items():
        ttft, is_ours = outcome.ttft_s, name == OURS
        cases += [
            CaseResult(
                case=f"{title}_{name}_hit",
                value=outcome.hit_rate,
                unit="share",
                limit=bound.hit_rate,
            ),
            CaseResult(
                case=f"{title}_{name}_ttft_mean",
                value=ttft.mean,
                unit="s",
                peer=best if is_ours else None,
                peer_value=outcomes[best].ttft_s.mean if is_ours else None,
                ratio=ratio if is_ours else None,
                limit=promised_ttft_s if is_ours and promised_ttft_s else bound.ttft_s.mean,
            ),
            CaseResult(case=f"{title}_{name}_ttft_p50", value=ttft.p50, unit="s"),
            CaseResult(case=f"{title}_{name}_ttft_p99", value=ttft.p99, unit="s"),
            CaseResult(
                case=f"{title}_{name}_under_2_s",
                value=outcome.share_under(UNDER_S),
                unit="share",
                limit=bound.share_under(UNDER_S),
            ),
            CaseResult(
                case=f"{title}_{name}_imbalance",
                value=outcome.request_imbalance,
                unit="busiest/mean",
            ),
        ]
    return cases


def bound_cases(title: str, bound: Outcome) -> list[CaseResult]:
    """A cache without bounds for all, and no queue."""
    return [
        CaseResult(case=f"{title}_bound_hit", value=bound.hit_rate, unit="share"),
        CaseResult(case=f"{title}_bound_ttft_mean", value=bound.ttft_s.mean, unit="s"),
        CaseResult(case=f"{title}_bound_under_2_s", value=bound.share_under(UNDER_S), unit="share"),
    ]


def shared_prompt_cases(name: str, result: SharedPrompt) -> list[CaseResult]:
    return [
        CaseResult(
            case=f"shared_prompt_{name}_imbalance",
            value=result.imbalance,
            unit="busiest/mean",
            limit=MAX_IMBALANCE,
        ),
        CaseResult(
            case=f"shared_prompt_{name}_of_reachable_hits",
            value=result.share_of_ceiling,
            unit="share",
            limit=MIN_SHARE_OF_CEILING,
        ),
        CaseResult(case=f"shared_prompt_{name}_ttft_mean", value=result.ttft_mean_s, unit="s"),
    ]


def join_cases(title: str, name: str, result: Joined) -> list[CaseResult]:
    """Shares of requests that the newcomer gets, relative to an equal share."""
    shares = result.shares_by_minute
    return [
        CaseResult(case=f"{title}_join_{name}_first_minute", value=shares[0], unit="equal shares"),
        CaseResult(
            case=f"{title}_join_{name}_lowest_minute", value=min(shares), unit="equal shares"
        ),
        CaseResult(
            case=f"{title}_join_{name}_highest_minute", value=max(shares), unit="equal shares"
        ),
        CaseResult(
            case=f"{title}_join_{name}_ttft_of_others", value=result.ttft_ratio, unit="ratio"
        ),
    ]


def loss_cases(title: str, name: str, result: Lost) -> list[CaseResult]:
    return [
        CaseResult(
            case=f"{title}_loss_{name}_imbalance",
            value=result.imbalance,
            unit="busiest/mean",
        ),
        CaseResult(
            case=f"{title}_loss_{name}_prefill_imbalance",
            value=result.prefill_imbalance,
            unit="busiest/mean",
        ),
        CaseResult(case=f"{title}_loss_{name}_ttft_mean", value=result.ttft_mean_s, unit="s"),
    ]
