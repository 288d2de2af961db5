"""`headwater replay`: answers a list of requests on one engine of this machine as they come, with
the settings of a file, and says when tokens came.

Drives the engine in this process, without HTTP or Ray.
"""

import argparse
import sys
from pathlib import Path

from deployments.bench_target import add_target_arguments, find_target

BAD_INPUT = 2
HELP = "answer timed requests on one engine of this machine, without a server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument(
        "--requests", type=Path, required=True, metavar="FILE",
        help="JSON: a list of {arrival_s, num_prompt_tokens, num_answer_tokens}",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the answers' times, as JSON"
    )


def run(args: argparse.Namespace) -> int:
    from deployments.offline_engine import OfflineEngine
    from deployments.replay_run import replay
    from engine.errors import EngineError
    from engine.output_file import check_output
    from engine.replay_file import read_requests, write_rows

    try:
        check_output(args.out, [args.requests, Path(args.target)])
        requests = read_requests(args.requests)
        target = find_target(args)
        engine = OfflineEngine(target.name, target.checkpoint, target.config)
        try:
            answers = replay(engine, requests)
        finally:
            engine.close()
        write_rows(args.out, answers)
    except EngineError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("stopped: nothing was written", file=sys.stderr)
        return 130
    print(f"answered {len(answers)} requests in {answers[-1].end_s:.1f} s; wrote {args.out}")
    return 0
