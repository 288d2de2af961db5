"""Readers of published traces. Each takes a path and names the row that is wrong. Must not know
where traces lie or what is done with them.
"""

import csv
import gzip
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from cache_tiers.keys import KEY_BYTES
from simulator.errors import TraceError
from simulator.json_fault import describe_fault
from simulator.trace_formats import AGENTIC_CODING, AZURE, MOONCAKE, MOONCAKE_BLOCK_TOKENS
from simulator.workload import SimulatedRequest, Workload

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MAX_FILE_BYTES = 2**31
_MAX_TOKENS = 10_000_000


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _CodingRequest(msgspec.Struct, rename={"num_input": "in", "num_output": "out"}):
    type: str = ""
    num_input: int = 0
    num_output: int = 0
    hash_ids: list[int] = []
    think_time: float = 0.0


class _CodingSession(msgspec.Struct):
    id: str
    block_size: int
    requests: list[_CodingRequest]


def read_mooncake(path: Path) -> Workload:
    """A ``*.jsonl`` of the Mooncake project: a row per request, ids of blocks of 512 tokens that
    are global, so that an equal id means an equal prefix so far.
    """
    decoder = msgspec.json.Decoder(_MooncakeRow)
    key_of: dict[int, bytes] = {}
    requests: list[SimulatedRequest] = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
            _check_lengths(row.input_length, row.output_length)
            if not 0 <= row.timestamp < 1e15:
                raise ValueError(f"timestamp is {row.timestamp}")
            # The last block may be a part of one; that has no key.
            ids = row.hash_ids[: row.input_length // MOONCAKE_BLOCK_TOKENS]
            keys = [key_of.get(i) or key_of.setdefault(i, _key(i)) for i in ids]
        except (msgspec.MsgspecError, ValueError) as error:
            raise TraceError(_fault(path, f"row {number}", error, MOONCAKE)) from error
        requests.append(
            SimulatedRequest(
                f"r{number}",
                row.timestamp / 1000,
                max(1, row.input_length),
                max(1, row.output_length),
                keys,
            )
        )
    requests.sort(key=lambda request: request.arrival_s)
    return _workload(path, MOONCAKE_BLOCK_TOKENS, requests)


def read_azure(path: Path, block_size_tokens: int = 512) -> Workload:
    """A ``*.csv`` of Azure's inference traces: arrivals and lengths. No two prompts are alike."""
    requests: list[SimulatedRequest] = []
    begin: datetime | None = None
    rows = csv.DictReader(line.decode() for line in _lines(path))
    try:
        missing = [name for name in _AZURE_COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise TraceError(f"{path}, row 1: no {', '.join(missing)}; the file must have {AZURE}")
        for number, row in enumerate(rows, start=2):
            try:
                arrival = _azure_time(row["TIMESTAMP"])
                num_prompt, num_answer = (_azure_count(row, name) for name in _AZURE_COLUMNS[1:])
                _check_lengths(num_prompt, num_answer)
            except ValueError as error:
                raise TraceError(_fault(path, f"row {number}", error, AZURE)) from error
            begin = arrival if begin is None else begin
            arrival_s = (arrival - begin).total_seconds()
            requests.append(
                SimulatedRequest(f"r{number}", arrival_s, max(1, num_prompt), max(1, num_answer))
            )
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is no table in UTF-8: {error}") from error
    requests.sort(key=lambda request: request.arrival_s)
    if requests and requests[0].arrival_s < 0:
        raise TraceError(f"{path}: the first row does not have the earliest TIMESTAMP")
    return _workload(path, block_size_tokens, requests)


def _azure_time(text: str | None) -> datetime:
    try:
        # Seven digits of a second's fraction are one more than there is a format for. The zone
        # behind six is cut off as well, so one behind none must not count either.
        return datetime.fromisoformat((text or "")[:26]).replace(tzinfo=None)
    except ValueError as error:
        raise ValueError(
            f"TIMESTAMP is {text!r}, no date and time" if text else "TIMESTAMP is missing"
        ) from error


def _azure_count(row: dict[str, str | None], name: str) -> int:
    text = row[name]
    try:
        return int(text or "")
    except ValueError as error:
        raise ValueError(
            f"{name} is {text!r}, no integer" if text else f"{name} is missing"
        ) from error


def read_agentic_coding(
    path: Path, *, sessions_per_s: float, seed: int = 0, num_sessions: int | None = None
) -> Workload:
    """Sessions of coding agents, ``*.json.gz`` in a folder: each request comes after the one before
    it was answered and thought about. Sessions begin at random, ``sessions_per_s`` in the mean.
    """
    if not sessions_per_s > 0:
        raise TraceError(f"sessions_per_s is {sessions_per_s}; it must be more than 0")
    files = sorted(path.glob("*.json.gz"))[:num_sessions]
    if not files:
        raise TraceError(f"{path} holds no *.json.gz of sessions")
    draw = random.Random(seed)
    begin_s = 0.0
    requests: list[SimulatedRequest] = []
    block_size = 0
    for number, file in enumerate(files):
        session = _read_session(file)
        if block_size not in (0, session.block_size):
            raise TraceError(
                f"{file} has blocks of {session.block_size} tokens, files before it {block_size}"
            )
        block_size = session.block_size
        requests += _session_requests(file, number, session, begin_s)
        begin_s += draw.expovariate(sessions_per_s)
    return _workload(path, block_size, requests)


def _read_session(path: Path) -> _CodingSession:
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ValueError("it is larger than 2 GiB")
        session = msgspec.json.decode(content, type=_CodingSession)
        if session.block_size < 1:
            raise ValueError(f"block_size is {session.block_size}")
    except (OSError, EOFError, msgspec.MsgspecError, ValueError) as error:
        raise TraceError(
            f"{path} is no session of the agentic coding traces: {_in_words(error)}; "
            f"the file must have {AGENTIC_CODING}"
        ) from error
    return session


def _session_requests(
    path: Path, number: int, session: _CodingSession, begin_s: float
) -> Iterator[SimulatedRequest]:
    prefix = number.to_bytes(KEY_BYTES // 2, "big")  # ids are the session's own
    key_of: dict[int, bytes] = {}
    """Equal keys are one object: compared at once, and kept once."""
    is_first = True
    for index, request in enumerate(session.requests):
        if not request.hash_ids:
            continue  # the sum of an agent of its own, whose requests follow
        try:
            _check_lengths(request.num_input, request.num_output)
            if not 0 <= request.think_time < 1e9:
                raise ValueError(f"think_time is {request.think_time}")
            ids = request.hash_ids[: request.num_input // session.block_size]
            key_of |= {
                i: prefix + i.to_bytes(KEY_BYTES // 2, "big") for i in ids if i not in key_of
            }
            keys = [key_of[i] for i in ids]
        except (ValueError, OverflowError) as error:
            raise TraceError(_fault(path, f"requests[{index}]", error, AGENTIC_CODING)) from error
        yield SimulatedRequest(
            f"s{number}-{index}",
            begin_s,
            max(1, request.num_input),
            max(1, request.num_output),
            keys,
            session=session.id,
            think_s=None if is_first else request.think_time,
        )
        is_first = False


def _check_lengths(num_prompt_tokens: int, num_answer_tokens: int) -> None:
    if not (0 <= num_prompt_tokens <= _MAX_TOKENS and 0 <= num_answer_tokens <= _MAX_TOKENS):
        raise ValueError(f"lengths are {num_prompt_tokens} and {num_answer_tokens} tokens")


def _key(block_id: int) -> bytes:
    if not 0 <= block_id < 1 << (8 * KEY_BYTES):
        raise ValueError(f"the id of a block is {block_id}")
    return block_id.to_bytes(KEY_BYTES, "big")


def _fault(path: Path, place: str, error: Exception, wanted: str) -> str:
    return f"{path}, {place}: {_in_words(error)}; the file must have {wanted}"


def _in_words(error: Exception) -> str:
    return describe_fault(error) if isinstance(error, msgspec.MsgspecError) else str(error)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error


def _workload(path: Path, block_size: int, requests: list[Any]) -> Workload:
    if not requests:
        raise TraceError(f"{path} holds no requests")
    return Workload(path.stem, block_size, tuple(requests))
