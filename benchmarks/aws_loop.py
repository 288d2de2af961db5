"""From no node to answers and back, with Ray's autoscaler on a mock EC2 whose nodes are raylets of
this machine: what the loop itself takes, without EC2's time to boot. And what requests hear where
there is no capacity.

    python -m benchmarks.aws_loop --out benchmarks/results/aws_loop.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from benchmarks.aws_loop_cluster import STEP_S, loop_cluster
from benchmarks.aws_loop_run import (
    LONG_TOKENS,
    NOTICE_S,
    NUM_FIRST,
    LoopFigures,
    RefusedFigures,
    run_loop,
    run_refused,
)
from benchmarks.machine import REPOSITORY
from benchmarks.result import BenchmarkResult, CaseResult
from deployments.environment import headwater_home
from engine.checkpoints.pull import pull

FIRST_ANSWER_LIMIT_S = 30.0
TO_ZERO_LIMIT_S = 90.0
REFUSED_MAX_WAIT_S = 8.0
"""The gateway's `max_queue_wait_s` where nothing can be had."""
REFUSED_LIMIT_S = REFUSED_MAX_WAIT_S + 10.0 + 2.0
"""Standard requests may wait ten seconds longer than that; and the rest of a busy machine."""
REFUSED_WATCHED_S = 20.0


def cases(figures: LoopFigures) -> list[CaseResult]:
    """Of a result file."""
    return [
        CaseResult(
            case="first answer from zero nodes",
            value=figures.first_answer_s,
            unit="s",
            limit=FIRST_ANSWER_LIMIT_S,
        ),
        CaseResult(case="all answers from zero nodes", value=figures.all_answers_s, unit="s"),
        CaseResult(
            case="back to zero nodes", value=figures.to_zero_s, unit="s", limit=TO_ZERO_LIMIT_S
        ),
        CaseResult(
            case="longest pause of an answer whose node is lost",
            value=figures.moved_pause_s,
            unit="s",
        ),
        CaseResult(case="failed requests", value=len(figures.failed), unit="requests"),
        CaseResult(case="requests", value=figures.num_requests, unit="requests"),
        CaseResult(case="nodes launched", value=figures.num_nodes, unit="nodes"),
        CaseResult(
            case="answers that differ after a move",
            value=0.0 if figures.is_same_text else 1.0,
            unit="answers",
        ),
    ]


def refused_cases(figures: RefusedFigures) -> list[CaseResult]:
    """Likewise."""
    return [
        CaseResult(
            case="no capacity: wait until 503",
            value=figures.waited_s,
            unit="s",
            limit=REFUSED_LIMIT_S,
        ),
        CaseResult(
            case="no capacity: retry-after",
            value=figures.outcome.retry_after_s or 0.0,
            unit="s",
        ),
        CaseResult(case="no capacity: calls of EC2", value=figures.num_asked, unit="calls"),
        CaseResult(case="no capacity: nodes launched", value=figures.num_launched, unit="nodes"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aws_loop", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    quickstart = yaml.safe_load((REPOSITORY / "configs" / "quickstart.yaml").read_text("utf-8"))
    args = quickstart["applications"][1]["args"]
    source = str(args["source"])
    checkpoint = pull(
        source, name=str(args["name"]), home=headwater_home(), sha256=args.get("source_sha256")
    )
    with loop_cluster(checkpoint.path, source) as cluster:
        figures = run_loop(cluster)
        refused = run_refused(cluster, max_wait_s=REFUSED_MAX_WAIT_S, watched_s=REFUSED_WATCHED_S)
    result = BenchmarkResult.of_this_machine(
        name="aws_loop",
        config={
            "step_s": STEP_S,
            "num_first_requests": NUM_FIRST,
            "num_long_tokens": LONG_TOKENS,
            "notice_s": NOTICE_S,
            "runner": "paced",
            "refused_max_wait_s": REFUSED_MAX_WAIT_S,
            "refused_watched_s": REFUSED_WATCHED_S,
        },
        seed=0,
        results=[*cases(figures), *refused_cases(refused)],
    )
    result.write(out)
    for case in result.results:
        print(f"{case.case:50} {case.value:8.2f} {case.unit}")


if __name__ == "__main__":
    main()
