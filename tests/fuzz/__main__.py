"""The long fuzz run: ``python -m tests.fuzz --requests 20000``."""

import argparse
import logging
from pathlib import Path

from benchmarks.result import BenchmarkResult, CaseResult
from tests.fuzz.at_rest import assert_at_rest
from tests.fuzz.campaign import fuzz
from tests.fuzz.small_chain import small_chain


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="another one draws other requests")
    parser.add_argument(
        "--runner", choices=["paced", "torch"], default="paced", help="torch runs the real model"
    )
    parser.add_argument("--out", type=Path, help="result file to write")
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    with small_chain(args.runner) as (chain, runner):
        report = fuzz(chain, runner, num_requests=args.requests, first_seed=args.seed)
        runner.run(assert_at_rest(chain))
    print(report)  # noqa: T201
    if args.out is not None:
        statuses = [(f"status_{status}", n) for status, n in sorted(report.num_by_status.items())]
        num_failed = sum(n for status, n in report.num_by_status.items() if status >= 500)
        counts = [
            ("requests", report.num_requests),
            ("streams", report.num_streams),
            *statuses,
            ("status_5xx", num_failed),
        ]
        BenchmarkResult.of_this_machine(
            name="fuzz",
            config={"requests": args.requests, "runner": args.runner},
            seed=args.seed,
            results=[CaseResult(case=case, value=n, unit="requests") for case, n in counts],
        ).write(args.out)


if __name__ == "__main__":
    main()
