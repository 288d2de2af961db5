"""The command line of `benchmarks.serving --peer`, checked and typed. Opens nothing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import ClosedLoop
from benchmarks.machine import REPOSITORY
from benchmarks.serving_options import MAX_CONCURRENCY, OneLineParser, parse_target
from benchmarks.statistics import MIN_PAIRS
from benchmarks.workload import Workload

PEERS = ("ray-serve-llm", "vllm-server")
CONCURRENCIES = (16, 1)
QUICKSTART = REPOSITORY / "configs" / "quickstart.yaml"


@dataclass(frozen=True, slots=True)
class Floor:
    """A peer slower than this ran on a machine that was busy, or was started wrongly."""

    peer: str
    concurrency: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class VersusOptions:
    """Who is measured, how, and where the result goes."""

    peers: tuple[str, ...]
    url: str | None
    file: Path
    num_threads: int | None
    num_replicas: int | None
    num_rounds: int
    concurrencies: tuple[int, ...]
    requests_per_client: int
    workload: Workload
    floors: tuple[Floor, ...]
    start_timeout_s: float
    run_timeout_s: float
    peer_home: Path | None
    out: Path

    def load(self, concurrency: int) -> ClosedLoop:
        num_requests = concurrency * self.requests_per_client
        return ClosedLoop(concurrency, num_requests, self.run_timeout_s)


def names_a_peer(argv: Sequence[str]) -> bool:
    """Whether servers are to be started, rather than measured where they run."""
    return any(each == "--peer" or each.startswith("--peer=") for each in argv)


def parse_versus_options(argv: Sequence[str]) -> VersusOptions:
    """Read the command line; prints one line and exits with 2 if it makes no sense."""
    parser = _make_parser()
    arguments = parser.parse_args(argv)
    try:
        return _to_options(arguments)
    except ValueError as error:
        parser.error(str(error))


def _make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="benchmarks.serving",
        description="Start each server in turn, ask all the same, compare ours with the peers.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--peer", choices=PEERS, action="append", required=True, help="may be given repeatedly")
    add("--out", required=True, type=Path, help="result file to write")
    add("--url", help="ours, if it runs already; else it is started in its turn")
    add("--file", type=Path, default=QUICKSTART, help="what ours serves (default: the quickstart)")
    add("--threads", type=int, help="of each engine of ours (default: as the file says)")
    add("--replicas", type=int, help="engines of ours (default: as the file says)")
    add("--rounds", type=int, default=MIN_PAIRS, help="starts of each server (default %(default)s)")
    add("--concurrency", type=int, action="append", help="repeatable (default: 16, then 1)")
    add("--requests-per-client", type=int, default=8, help="of a run (default %(default)s)")
    add("--prompt-words", type=int, default=17, help="words per prompt (default %(default)s)")
    add("--output-tokens", type=int, default=64, help="of every answer (default %(default)s)")
    add("--seed", type=int, default=0, help="of the prompts (default %(default)s)")
    add(
        "--at-least",
        action="append",
        default=[],
        metavar="PEER:CONCURRENCY:TOKENS_PER_S",
        help="write no result if the peer is slower than it is known to be; repeatable",
    )
    add("--start-timeout-s", type=float, default=300.0, help="of a start (default %(default)s)")
    add("--timeout-s", type=float, default=600.0, help="of one run (default %(default)s)")
    add("--peer-home", type=Path, help="where the peers' environments are kept")
    return parser


def _to_options(arguments: argparse.Namespace) -> VersusOptions:
    concurrencies = tuple(arguments.concurrency or CONCURRENCIES)
    _check_numbers(arguments, concurrencies)
    if arguments.out.is_dir():
        raise ValueError(f"--out {arguments.out} is a folder, name a file")
    for option, given in (("--peer", arguments.peer), ("--concurrency", concurrencies)):
        if len(set(given)) < len(given):
            raise ValueError(f"{option} names one twice: {', '.join(map(str, given))}")
    if arguments.url is not None:
        if arguments.threads is not None or arguments.replicas is not None:
            raise ValueError("--threads and --replicas are of a server that is started, not --url")
        parse_target(arguments.url, model="", api_key=None, allow_remote=False)
    floors = tuple(_parse_floor(text) for text in arguments.at_least)
    for floor in floors:
        if floor.peer not in arguments.peer or floor.concurrency not in concurrencies:
            raise ValueError(f"--at-least {floor.peer}:{floor.concurrency} is not measured")
    return VersusOptions(
        peers=tuple(arguments.peer),
        url=arguments.url,
        file=arguments.file,
        num_threads=arguments.threads,
        num_replicas=arguments.replicas,
        num_rounds=arguments.rounds,
        concurrencies=concurrencies,
        requests_per_client=arguments.requests_per_client,
        workload=Workload(
            prompt_words=arguments.prompt_words,
            output_tokens=arguments.output_tokens,
            seed=arguments.seed,
            ignore_eos=True,
        ),
        floors=floors,
        start_timeout_s=arguments.start_timeout_s,
        run_timeout_s=arguments.timeout_s,
        peer_home=arguments.peer_home,
        out=arguments.out,
    )


def _check_numbers(arguments: argparse.Namespace, concurrencies: Sequence[int]) -> None:
    bounds: list[tuple[str, int | None, int]] = [
        *(("--concurrency", number, MAX_CONCURRENCY) for number in concurrencies),
        ("--rounds", arguments.rounds, 100),
        ("--requests-per-client", arguments.requests_per_client, 10_000),
        ("--threads", arguments.threads, 1024),
        ("--replicas", arguments.replicas, 1024),
    ]
    for option, number, high in bounds:
        if number is not None and not 1 <= number <= high:
            raise ValueError(f"{option} must lie between 1 and {high}, got {number}")
    timeouts = (
        ("--start-timeout-s", arguments.start_timeout_s),
        ("--timeout-s", arguments.timeout_s),
    )
    for option, seconds in timeouts:
        if not (math.isfinite(seconds) and seconds > 0.0):
            raise ValueError(f"{option} must be a number above 0, got {seconds}")


def _parse_floor(text: str) -> Floor:
    try:
        peer, concurrency, tokens_per_s = text.split(":")
        floor = Floor(peer, int(concurrency), float(tokens_per_s))
    except ValueError:
        raise ValueError(f"--at-least {text}: say PEER:CONCURRENCY:TOKENS_PER_S") from None
    if not (math.isfinite(floor.tokens_per_s) and floor.tokens_per_s > 0.0):
        raise ValueError(f"--at-least {text}: tokens/s must be a number above 0")
    return floor
