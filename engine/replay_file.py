"""What a replay of requests on one engine is given, and what it found: two JSON files, so that who
made the requests need not be who runs the engine. Imports no torch.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from engine.errors import EngineError
from engine.output_file import write_output

_MAX_FILE_BYTES = 256 * 2**20


class ReplayFileError(EngineError):
    """A file cannot be read, or holds something else."""


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt, like no other, and its answer."""

    arrival_s: float
    """From the beginning of the replay."""
    num_prompt_tokens: int
    num_answer_tokens: int
    """Exactly so many are generated."""


class ReplayedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one; times are from the beginning of the replay."""

    request: ReplayRequest
    first_token_s: float
    end_s: float


Row = TypeVar("Row", ReplayRequest, ReplayedAnswer)


def write_rows(path: Path, rows: list[Row]) -> None:
    """Raises `OutputFileError`."""
    write_output(path, msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


def read_requests(path: Path) -> list[ReplayRequest]:
    """In the order of their arrival. Raises `ReplayFileError`."""
    requests = _read(path, ReplayRequest)
    if not requests:
        raise ReplayFileError(f"{path} holds no requests")
    for number, request in enumerate(requests):
        lengths = (request.num_prompt_tokens, request.num_answer_tokens)
        if min(lengths) < 1 or not 0 <= request.arrival_s < 1e9:
            raise ReplayFileError(
                f"{path}, request {number}: it needs a prompt, an answer and an arrival_s of 0 or "
                "more"
            )
    return sorted(requests, key=lambda request: request.arrival_s)


def read_answers(path: Path) -> list[ReplayedAnswer]:
    """Raises `ReplayFileError`."""
    return _read(path, ReplayedAnswer)


def _read(path: Path, kind: type[Row]) -> list[Row]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ReplayFileError(f"{path} is too large: split it")
        return msgspec.json.decode(path.read_bytes(), type=list[kind])  # type: ignore[valid-type]
    except OSError as error:
        raise ReplayFileError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReplayFileError(f"{path} is no list of {kind.__name__}: {error}") from error
