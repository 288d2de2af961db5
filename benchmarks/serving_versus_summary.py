"""Cases, validity and the printed table of what `benchmarks.serving --peer` measured.

Arithmetic on rounds only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.result import CaseResult
from benchmarks.serving_contestants import OURS
from benchmarks.serving_rounds import Round
from benchmarks.serving_server import MeasurementError
from benchmarks.serving_summary import compare
from benchmarks.serving_versus_options import Floor
from benchmarks.statistics import percentile

SPEED = "output_tokens_per_s"
REPORTED = (
    SPEED,
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "tpot_p99",
    "gap_p99",
    "e2e_p50",
    "e2e_p99",
    "client_cpu_s",
)

Rounds = Mapping[str, Sequence[Round]]
"""By the server's name; as many of each."""


def versus_cases(rounds: Rounds, labels: Mapping[str, str]) -> list[CaseResult]:
    """`c16_ttft_p50_vs_vllm-server`, ...: ours beside each peer, a pair per round.

    `labels` says by what name and version a peer stands in the result.
    """
    ours = rounds[OURS]
    cases = []
    for concurrency in ours[0].runs:
        for peer, theirs in rounds.items():
            if peer == OURS:
                continue
            pairs = [
                (_reported(a.runs[concurrency]), _reported(b.runs[concurrency]))
                for a, b in zip(ours, theirs, strict=True)
            ]
            cases += [
                CaseResult(
                    case=f"c{concurrency}_{case.case}_vs_{peer}",
                    value=case.value,
                    unit=case.unit,
                    peer=case.peer,
                    peer_value=case.peer_value,
                    ratio=case.ratio,
                )
                for case in compare(pairs, labels[peer])
            ]
    return cases


def check_floors(rounds: Rounds, floors: Sequence[Floor]) -> None:
    """Raises MeasurementError if a peer was slower than it is known to be."""
    for floor in floors:
        measured = _median_of(rounds[floor.peer], floor.concurrency, SPEED)
        if measured < floor.tokens_per_s:
            raise MeasurementError(
                f"{floor.peer} gave {measured:.0f} tok/s at concurrency {floor.concurrency}, less "
                f"than {floor.tokens_per_s:.0f}: the comparison is void. Was the machine busy?"
            )


def speeds_of(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Tokens/s of every round, by concurrency: how much the rounds differ."""
    return {
        f"c{concurrency}": [round(each.value(concurrency, SPEED), 1) for each in rounds]
        for concurrency in rounds[0].runs
    }


def median_start_s(rounds: Sequence[Round]) -> float:
    return percentile([each.start_s for each in rounds], 50.0)


def table_of(rounds: Rounds) -> str:
    """Medians over the rounds, a column per server; a peer's is followed by ours over it."""
    peers = [name for name in rounds if name != OURS]
    lines = []
    for concurrency in rounds[OURS][0].runs:
        heads = "".join(f"{peer:>18}{'ratio':>8}" for peer in peers)
        lines.append(f"{f'concurrency {concurrency}':<22}{OURS:>12}{heads}")
        for case in REPORTED:
            if not all(_has(rounds[name], concurrency, case) for name in rounds):
                continue
            ours = _median_of(rounds[OURS], concurrency, case)
            line = f"{case:<22}{ours:>12.2f}"
            for peer in peers:
                theirs = _median_of(rounds[peer], concurrency, case)
                line += f"{theirs:>18.2f}{ours / theirs if theirs else float('nan'):>8.2f}"
            lines.append(line)
    return "\n".join(lines)


def _reported(run: Sequence[CaseResult]) -> list[CaseResult]:
    return [case for case in run if case.case in REPORTED]


def _has(rounds: Sequence[Round], concurrency: int, case: str) -> bool:
    return all(any(each.case == case for each in one.runs[concurrency]) for one in rounds)


def _median_of(rounds: Sequence[Round], concurrency: int, case: str) -> float:
    return percentile([each.value(concurrency, case) for each in rounds], 50.0)
