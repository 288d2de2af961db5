"""What the benchmark and the script of a peer say to each other: JSON, one object a line.

The script says ``{"versions": {...}}`` when it is ready. It then gets a `Case` a line, measures it
and answers with a `Speed`, or with ``{"error": "..."}``; it ends when its input does.

Standard library only: a script imports it with the Python of its own environment.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from typing import IO, Any

from benchmarks.engine_cases import Case
from benchmarks.engine_timing import Speed


class PeerReplyError(ValueError):
    """A line that is no answer of the protocol, or one that says that the peer failed."""


@contextlib.contextmanager
def claimed_stdout() -> Iterator[IO[str]]:
    """The real standard output for answers; whatever else writes to it goes to standard error.

    Enter it before the peer's packages are imported: they log where they find standard output.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as answers:
        os.dup2(2, 1)
        yield answers


def serve(
    lines: Iterable[str],
    answers: IO[str],
    measure: Callable[[Case], Speed],
    packages: tuple[str, ...],
) -> None:
    """Answer each of ``lines``; ``packages`` are those whose versions are told."""
    versions = {package: metadata.version(package) for package in packages}
    answers.write(json.dumps({"versions": versions}) + "\n")
    for line in lines:
        answer: dict[str, object]
        try:
            answer = asdict(measure(Case(**json.loads(line))))
        except Exception as error:  # the benchmark says it and ends
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def encode_case(case: Case) -> bytes:
    return json.dumps(asdict(case)).encode() + b"\n"


def decode_versions(line: bytes) -> Mapping[str, str]:
    """The first line of a peer; raises PeerReplyError."""
    versions = _decode(line).get("versions")
    if not isinstance(versions, dict):
        raise PeerReplyError(f"expected its versions, got {line[:200]!r}")
    return {str(name): str(version) for name, version in versions.items()}


def decode_speed(line: bytes) -> Speed:
    """Any other line of a peer; raises PeerReplyError."""
    answer = _decode(line)
    if "error" in answer:
        raise PeerReplyError(str(answer["error"]))
    try:
        return Speed(float(answer["tokens_per_s"]), float(answer["step_s"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PeerReplyError(f"expected a speed, got {line[:200]!r}") from error


def _decode(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise PeerReplyError(f"expected JSON, got {line[:200]!r}") from error
    if not isinstance(answer, dict):
        raise PeerReplyError(f"expected an object, got {line[:200]!r}")
    return answer
