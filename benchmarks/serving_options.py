"""The command line of the serving benchmark, checked and typed.

Opens nothing: whatever is refused here is refused before the first packet.
"""

from __future__ import annotations

import argparse
import ipaddress
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from benchmarks.chat_workload import ChatWorkload
from benchmarks.load import ClosedLoop, OpenLoop
from benchmarks.statistics import MIN_PAIRS
from benchmarks.workload import Workload

MAX_REQUESTS = 1_000_000
MAX_CONCURRENCY = 4096
CHAT_PATH = "/v1/chat/completions"

AnyWorkload = Workload | ChatWorkload


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
    workload: AnyWorkload
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
            "think_s": load.think_s,
            "workload": "chat" if isinstance(self.workload, ChatWorkload) else "fixed",
            **asdict(self.workload),
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


class OneLineParser(argparse.ArgumentParser):
    """Says in one line what it refuses."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="benchmarks.serving",
        description="Measure an OpenAI-compatible server over HTTP.",
        epilog="To start servers and measure them in turn: --peer vllm-server --help",
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
    add("--workload", choices=("fixed", "chat"), default="fixed", help="(default %(default)s)")
    add("--scale", type=float, help="chat: all lengths times this (default 1: 3k in, 400 out)")
    add("--turns", type=int, help="chat: requests of one session (default 15)")
    add("--system-prompts", type=int, help="chat: shared by the sessions (default 8)")
    add("--answer-tokens", type=int, help="chat: mean of an answer, instead of the scaled 400")
    add("--think-s", type=float, help="chat: mean pause between two turns (default 0)")
    add("--prompt-words", type=int, help="fixed: words per prompt (default 17)")
    add("--shared-prefix-words", type=int, help="fixed: first words all prompts share")
    add("--output-tokens", type=int, help="fixed: tokens per answer (default 64)")
    add("--ignore-eos", action="store_true", help="fixed: ask for exactly that many; chat does")
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
    workload = _to_workload(arguments)
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
        workload=workload,
        load=_to_load(arguments, workload),
        num_warmup_requests=arguments.warmup_requests,
        out=arguments.out,
    )


_FIXED_ONLY = ("prompt_words", "shared_prefix_words", "output_tokens")
_CHAT_ONLY = ("scale", "turns", "system_prompts", "answer_tokens", "think_s")


def _to_workload(arguments: argparse.Namespace) -> AnyWorkload:
    others = _FIXED_ONLY if arguments.workload == "chat" else _CHAT_ONLY
    for name in others:
        if getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} has no meaning with --workload {arguments.workload}")
    if arguments.workload == "fixed":
        return Workload(
            prompt_words=_or(arguments.prompt_words, 17),
            output_tokens=_or(arguments.output_tokens, 64),
            seed=arguments.seed,
            shared_prefix_words=_or(arguments.shared_prefix_words, 0),
            ignore_eos=arguments.ignore_eos,
        )
    chat = ChatWorkload(
        seed=arguments.seed,
        num_turns=_or(arguments.turns, 15),
        num_system_prompts=_or(arguments.system_prompts, 8),
    ).scaled(1.0 if arguments.scale is None else arguments.scale)
    if arguments.answer_tokens is not None:
        chat = replace(chat, mean_answer_tokens=arguments.answer_tokens)
    return chat


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _to_load(arguments: argparse.Namespace, workload: AnyWorkload) -> OpenLoop | ClosedLoop:
    think_s = arguments.think_s or 0.0
    if arguments.rate is None:
        return ClosedLoop(
            arguments.concurrency,
            arguments.num_requests,
            arguments.timeout_s,
            seed=arguments.seed,
            session_len=workload.session_len,
            think_s=think_s,
        )
    return OpenLoop(
        arguments.rate,
        arguments.num_requests,
        arguments.timeout_s,
        arguments.seed,
        session_len=workload.session_len,
        think_s=think_s,
    )


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
    think_s = arguments.think_s
    if think_s is not None and not (math.isfinite(think_s) and think_s >= 0.0):
        raise ValueError(f"--think-s can't be negative, got {think_s}")


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
