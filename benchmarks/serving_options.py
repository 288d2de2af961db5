"""The command line of the serving benchmark, checked and typed.

Opens nothing: whatever is refused here is refused before the first packet.
"""

from __future__ import annotations

import argparse
import ipaddress
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from benchmarks.load import ClosedLoop, OpenLoop
from benchmarks.statistics import MIN_PAIRS
from benchmarks.workload import Workload

MAX_REQUESTS = 1_000_000
MAX_CONCURRENCY = 4096
CHAT_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Target:
    """A server to measure."""

    url: str  # as given, for the result file
    host: str
    port: int
    path: str
    model: str
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """What to measure and where the result goes."""

    target: Target
    peer: Target | None
    peer_name: str
    num_pairs: int
    workload: Workload
    load: OpenLoop | ClosedLoop
    num_warmup_requests: int
    out: Path

    def describe(self) -> dict[str, object]:
        """For the result file's `config`: everything that shapes the figures, no key."""
        load = self.load
        return {
            "url": self.target.url,
            "model": self.target.model,
            "compare_url": self.peer.url if self.peer else None,
            "compare_model": self.peer.model if self.peer else None,
            "num_pairs": self.num_pairs if self.peer else None,
            "rate_per_s": load.rate_per_s if isinstance(load, OpenLoop) else None,
            "concurrency": load.concurrency if isinstance(load, ClosedLoop) else None,
            "num_requests": load.num_requests,
            "timeout_s": load.timeout_s,
            "prompt_words": self.workload.prompt_words,
            "shared_prefix_words": self.workload.shared_prefix_words,
            "output_tokens": self.workload.output_tokens,
            "ignore_eos": self.workload.ignore_eos,
            "num_warmup_requests": self.num_warmup_requests,
        }


def parse_options(argv: Sequence[str]) -> ServingOptions:
    """Read the command line; prints one line and exits with 2 if it makes no sense."""
    parser = _make_parser()
    arguments = parser.parse_args(argv)
    try:
        return _to_options(arguments)
    except ValueError as error:
        parser.error(str(error))


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="benchmarks.serving",
        description="Measure an OpenAI-compatible server over HTTP.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--url", required=True, help="server to measure, such as http://127.0.0.1:8000")
    add("--model", required=True, help="model id to ask for")
    add("--out", required=True, type=Path, help="result file to write")
    add("--api-key", help="sent as a bearer token; never written to the result")
    loop = parser.add_mutually_exclusive_group(required=True)
    loop.add_argument("--rate", type=float, help="open loop: mean requests per second (Poisson)")
    loop.add_argument("--concurrency", type=int, help="closed loop: requests in flight")
    add("--num-requests", type=int, default=100, help="requests per run (default %(default)s)")
    add("--timeout-s", type=float, default=600.0, help="bound of one run (default %(default)s)")
    add("--prompt-words", type=int, default=17, help="words per prompt (default %(default)s)")
    add("--shared-prefix-words", type=int, default=0, help="first words all prompts share")
    add("--output-tokens", type=int, default=64, help="tokens per answer (default %(default)s)")
    add("--ignore-eos", action="store_true", help="ask for exactly that many tokens")
    add("--warmup-requests", type=int, default=4, help="unmeasured ones (default %(default)s)")
    add("--seed", type=int, default=0, help="of prompts and arrivals (default %(default)s)")
    add("--allow-remote", action="store_true", help="permit a server that is not on this machine")
    add("--compare-url", help="second server: measure both in interleaved pairs of runs")
    add("--compare-model", help="its model id (default: --model)")
    add("--compare-api-key", help="its key; --api-key is never sent to it")
    add("--compare-name", help="what to call it in the result (default: its URL)")
    add("--pairs", type=int, default=MIN_PAIRS, help="A/B pairs of runs (default %(default)s)")
    return parser


def _to_options(arguments: argparse.Namespace) -> ServingOptions:
    _check_numbers(arguments)
    if arguments.out.is_dir():
        raise ValueError(f"--out {arguments.out} is a folder, name a file")
    peer = None
    if arguments.compare_url is not None:
        peer = parse_target(
            arguments.compare_url,
            model=arguments.compare_model or arguments.model,
            api_key=arguments.compare_api_key,
            allow_remote=arguments.allow_remote,
        )
    elif arguments.compare_model or arguments.compare_api_key or arguments.compare_name:
        raise ValueError("--compare-model, -api-key and -name need --compare-url")
    return ServingOptions(
        target=parse_target(
            arguments.url,
            model=arguments.model,
            api_key=arguments.api_key,
            allow_remote=arguments.allow_remote,
        ),
        peer=peer,
        peer_name=arguments.compare_name or arguments.compare_url or "",
        num_pairs=arguments.pairs,
        workload=Workload(
            prompt_words=arguments.prompt_words,
            output_tokens=arguments.output_tokens,
            seed=arguments.seed,
            shared_prefix_words=arguments.shared_prefix_words,
            ignore_eos=arguments.ignore_eos,
        ),
        load=_to_load(arguments),
        num_warmup_requests=arguments.warmup_requests,
        out=arguments.out,
    )


def _to_load(arguments: argparse.Namespace) -> OpenLoop | ClosedLoop:
    if arguments.rate is None:
        return ClosedLoop(arguments.concurrency, arguments.num_requests, arguments.timeout_s)
    return OpenLoop(arguments.rate, arguments.num_requests, arguments.timeout_s, arguments.seed)


def _check_numbers(arguments: argparse.Namespace) -> None:
    bounds: list[tuple[str, float | None, float, float]] = [
        ("--num-requests", arguments.num_requests, 1, MAX_REQUESTS),
        ("--concurrency", arguments.concurrency, 1, MAX_CONCURRENCY),
        ("--warmup-requests", arguments.warmup_requests, 0, MAX_REQUESTS),
        ("--pairs", arguments.pairs, MIN_PAIRS, 1000),
    ]
    for option, number, low, high in bounds:
        if number is not None and not low <= number <= high:
            raise ValueError(f"{option} must lie between {low} and {high}, got {number}")
    for option, number in (("--rate", arguments.rate), ("--timeout-s", arguments.timeout_s)):
        if number is not None and not (math.isfinite(number) and number > 0.0):
            raise ValueError(f"{option} must be a number above 0, got {number}")


def parse_target(url: str, *, model: str, api_key: str | None, allow_remote: bool) -> Target:
    """Check a server's URL; with or without a trailing /v1. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:8000 (TLS isn't measured)")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("a server's URL has no user, query or fragment; pass a key by --api-key")
    try:
        port = parts.port or 80
    except ValueError as error:
        raise ValueError(f"{url!r}: {error}") from None
    if not allow_remote and not _is_loopback(parts.hostname):
        raise ValueError(
            f"{parts.hostname} is not this machine: a load generator can take a server down; "
            "add --allow-remote if it is yours"
        )
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ValueError("an API key consists of printable ASCII characters")
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Target(url, parts.hostname, port, base + CHAT_PATH, model, api_key)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
