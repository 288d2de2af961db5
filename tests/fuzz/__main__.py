"""The long fuzz run: ``python -m tests.fuzz --requests 20000``."""

import argparse
import logging

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
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    with small_chain(args.runner) as (chain, runner):
        report = fuzz(chain, runner, num_requests=args.requests, first_seed=args.seed)
        runner.run(assert_at_rest(chain))
    print(report)  # noqa: T201


if __name__ == "__main__":
    main()
