"""From measurements of the engine benchmark to rows of its result, and whether they count."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.engine_cases import CASES
from benchmarks.engine_timing import Speed
from benchmarks.peer_environment import VLLM_NAME
from benchmarks.result import CaseResult
from benchmarks.statistics import MIN_PAIRS, paired_ratio, percentile

EXPECTED_TOKENS_PER_S: Mapping[str, Mapping[str, float]] = {
    VLLM_NAME: {
        "decode_bs1": 30.0,
        "decode_bs4": 117.0,
        "decode_bs16": 359.0,
        "decode_bs64": 1131.0,
        "prefill_2048": 1842.0,
        "prefill_8x512": 2424.0,
    }
}
"""Of a peer on two cores with the quickstart's model, the lower of two careful runs. One that is
much slower was disturbed or badly set up, and beating it proves nothing."""

MIN_PART_OF_EXPECTED = 0.8
MAX_IDLE_CORES = 0.05
PROMISED_MEAN_RATIO = 2.5


@dataclass(frozen=True, slots=True)
class CaseRuns:
    """All runs of a case: the i-th of each were measured one after the other."""

    case: str
    own: Sequence[Speed]
    peers: Mapping[str, Sequence[Speed]] = field(default_factory=dict)
    limits_tokens_per_s: Sequence[float] = ()
    """Of the matrix work alone; none where it isn't comparable."""


def summarize(runs: CaseRuns) -> list[CaseResult]:
    """Medians over the runs: beside the first peer under the case's name, beside each further one
    as ``<case>_<peer>``, and the time of a step."""
    value = _median_speed(runs.own)
    limit = percentile(runs.limits_tokens_per_s, 50.0) if runs.limits_tokens_per_s else None
    step_ms = percentile([run.step_s for run in runs.own], 50.0) * 1000
    rows: list[CaseResult] = []
    for peer, speeds in runs.peers.items():
        rows.append(
            CaseResult(
                case=f"{runs.case}_{peer}" if rows else runs.case,
                value=value,
                unit="tok/s",
                peer=peer,
                peer_value=_median_speed(speeds),
                ratio=(
                    paired_ratio(_speeds(runs.own), _speeds(speeds))
                    if len(speeds) >= MIN_PAIRS
                    else None
                ),
                limit=None if rows else limit,
            )
        )
    if not rows:
        rows.append(CaseResult(case=runs.case, value=value, unit="tok/s", limit=limit))
    return [*rows, CaseResult(case=f"{runs.case}_step", value=step_ms, unit="ms")]


def describe(rows: Sequence[CaseResult]) -> str:
    """One line for the terminal: ours, then a column for each peer."""
    *speeds, step = rows
    first = speeds[0]
    line = f"{first.case:16} {first.value:8.1f} tok/s {step.value:8.2f} ms/step"
    if first.of_limit is not None:
        line += f" {first.of_limit:5.0%} of the matrix work alone"
    for row in speeds:
        if row.peer is not None:
            line += f" | {row.peer} {row.peer_value:8.1f} tok/s"
            if row.ratio is not None:
                ratio = row.ratio
                line += f" {ratio.median:5.2f}x [{ratio.q1:.2f} {ratio.q3:.2f}]"
    return line


def mean_ratio(rows: Sequence[CaseResult]) -> CaseResult | None:
    """Geometric mean of the ratios to the first peer; None unless every case has one."""
    ratios = {row.case: row.ratio.median for row in rows if row.ratio is not None}
    names = [case.name for case in CASES]
    if not all(ratios.get(name) for name in names):
        return None
    mean = math.exp(sum(math.log(ratios[name]) for name in names) / len(names))
    return CaseResult(case="geometric_mean", value=mean, unit="x", limit=PROMISED_MEAN_RATIO)


def find_slow_peers(rows: Sequence[CaseResult]) -> list[str]:
    """Why the run is invalid: peers below what they are known to do."""
    reasons = []
    for row in rows:
        expected = EXPECTED_TOKENS_PER_S.get(row.peer or "", {}).get(row.case)
        if expected is None or row.peer_value is None:
            continue
        if row.peer_value < MIN_PART_OF_EXPECTED * expected:
            reasons.append(
                f"{row.case}: {row.peer} made {row.peer_value:.0f} tok/s, less than "
                f"{MIN_PART_OF_EXPECTED:.0%} of the {expected:.0f} expected"
            )
    return reasons


def find_busy_idlers(idle_cores: Mapping[str, float]) -> list[str]:
    """Why the run is invalid: those that kept a core busy while another was measured."""
    return [
        f"{name} kept {cores:.2f} cores busy while others were measured"
        for name, cores in idle_cores.items()
        if cores > MAX_IDLE_CORES
    ]


def _speeds(runs: Sequence[Speed]) -> list[float]:
    return [run.tokens_per_s for run in runs]


def _median_speed(runs: Sequence[Speed]) -> float:
    return percentile(_speeds(runs), 50.0)
