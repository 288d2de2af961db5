"""Turns what a serving run recorded into the cases of a result file.

Arithmetic on records only: no clock, no socket, no file.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.load import LoadOutcome
from benchmarks.result import CaseResult
from benchmarks.statistics import MIN_PAIRS, paired_ratio, percentile
from benchmarks.timeline import RequestRecord

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)


def summarize(outcome: LoadOutcome, client_cpu_s: float) -> list[CaseResult]:
    """The cases of one run; latencies are of the requests that succeeded, and only of those.

    Raises ValueError with the first failure if none did.
    """
    good = [record for record in outcome.records if record.error is None]
    if not good:
        raise ValueError(f"no request succeeded: {first_error(outcome) or 'none ended in time'}")
    ttfts_s = [record.ttft_s for record in good if record.ttft_s is not None]
    tpots_s = [record.tpot_s for record in good if record.tpot_s is not None]
    gaps_s = [gap_s for record in good for gap_s in record.gaps_s]
    num_tokens = sum(record.completion_tokens for record in good)
    return [
        *_latency_cases("ttft", ttfts_s),
        *_latency_cases("gap", gaps_s),
        *_latency_cases("tpot", tpots_s),
        *_latency_cases("e2e", [record.e2e_s for record in good]),
        *_latency_cases("send_lag", [record.send_lag_s for record in good]),
        CaseResult(case="output_tokens_per_s", value=num_tokens / outcome.duration_s, unit="tok/s"),
        CaseResult(case="requests_per_s", value=len(good) / outcome.duration_s, unit="req/s"),
        CaseResult(case="succeeded", value=len(good), unit="requests"),
        CaseResult(case="errors", value=len(outcome.records) - len(good), unit="requests"),
        CaseResult(case="unfinished", value=outcome.num_unfinished, unit="requests"),
        CaseResult(case="output_tokens", value=num_tokens, unit="tokens"),
        *_prompt_cases(good),
        CaseResult(case="gaps", value=len(gaps_s), unit="gaps"),
        CaseResult(case="duration_s", value=outcome.duration_s, unit="s"),
        CaseResult(case="client_cpu_s", value=client_cpu_s, unit="s"),
    ]


def compare(
    pairs: Sequence[tuple[Sequence[CaseResult], Sequence[CaseResult]]], peer: str
) -> list[CaseResult]:
    """Medians over the pairs' runs, and the paired ratio of each case (ours over the peer's).

    A case that some run lacks is left out. A ratio needs enough pairs, and a peer that never
    measured zero.
    """
    ours = [{case.case: case for case in run} for run, _ in pairs]
    theirs = [{case.case: case for case in run} for _, run in pairs]
    compared = []
    for name, example in ours[0].items():
        if not all(name in run for run in (*ours, *theirs)):
            continue
        values = [run[name].value for run in ours]
        peer_values = [run[name].value for run in theirs]
        has_ratio = len(pairs) >= MIN_PAIRS and min(peer_values) > 0.0
        compared.append(
            CaseResult(
                case=name,
                value=percentile(values, 50.0),
                unit=example.unit,
                peer=peer,
                peer_value=percentile(peer_values, 50.0),
                ratio=paired_ratio(values, peer_values) if has_ratio else None,
            )
        )
    return compared


def first_error(outcome: LoadOutcome) -> str | None:
    """The first failure of a run, None if nothing failed."""
    return next((record.error for record in outcome.records if record.error), None)


def _prompt_cases(records: Sequence[RequestRecord]) -> list[CaseResult]:
    """None if the server does not count prompts."""
    num_prompt = sum(record.prompt_tokens for record in records)
    if not num_prompt:
        return []
    num_cached = sum(record.cached_tokens for record in records)
    return [
        CaseResult(case="prompt_tokens", value=num_prompt, unit="tokens"),
        CaseResult(case="prefilled_tokens", value=num_prompt - num_cached, unit="tokens"),
        CaseResult(case="hit_rate", value=num_cached / num_prompt, unit="1"),
    ]


def _latency_cases(name: str, seconds: Sequence[float]) -> list[CaseResult]:
    """Percentiles and mean in ms; none if nothing was measured (one-token answers have no gap)."""
    if not seconds:
        return []
    milliseconds = sorted(second * 1e3 for second in seconds)
    cases = [
        CaseResult(case=f"{name}_p{percent:g}", value=percentile(milliseconds, percent), unit="ms")
        for percent in PERCENTS
    ]
    mean_ms = sum(milliseconds) / len(milliseconds)
    return [*cases, CaseResult(case=f"{name}_mean", value=mean_ms, unit="ms")]
