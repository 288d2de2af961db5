"""Published traces are read as their columns say, and the row that is wrong is named."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import TraceError
from simulator.traces import read_agentic_coding, read_azure, read_mooncake


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def mooncake_row(**changes: Any) -> str:
    row = {"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 5, 6]}
    return json.dumps({**row, **changes})


def test_blocks_that_are_full_have_the_keys_of_their_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", mooncake_row(), mooncake_row(timestamp=0, output_length=0))
    workload = read_mooncake(path)
    first, second = workload.requests
    assert (first.request_id, first.arrival_s, first.num_answer_tokens) == ("r2", 0.0, 1)
    assert (second.arrival_s, second.num_prompt_tokens, second.num_answer_tokens) == (3.0, 1100, 7)
    assert second.block_keys == [(0).to_bytes(16), (5).to_bytes(16)]
    assert workload.block_size_tokens == 512


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("{}", "timestamp is missing"),
        ("not json", "it is no JSON"),
        ("[]", "it is a list, not an object"),
        (mooncake_row(input_length=-1), "lengths are -1 and 7 tokens"),
        (mooncake_row(output_length=1.5), "output_length is a number, not an integer"),
        (mooncake_row(hash_ids=["a"]), r"hash_ids\[0\] is a text, not an integer"),
        (mooncake_row(hash_ids=[-1, 2, 3]), "the id of a block is -1"),
        (mooncake_row(hash_ids=[2**200, 2, 3]), "the id of a block is 1606938"),
        (mooncake_row(timestamp=-5), "timestamp is -5"),
    ],
)
def test_a_bad_row_of_mooncake_is_named_in_words(tmp_path: Path, row: str, fault: str) -> None:
    path = write(tmp_path / "t.jsonl", mooncake_row(), row)
    format_in_words = r"timestamp \(arrival, in ms\).*block of 512 tokens"
    with pytest.raises(TraceError, match=rf"t\.jsonl, row 2: {fault}.*; .*{format_in_words}"):
        read_mooncake(path)


def test_arrivals_of_azure_begin_at_0(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:48.1805900,396,109",
    )
    first, second = read_azure(path).requests
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.5)
    assert (second.num_prompt_tokens, second.num_answer_tokens, second.block_keys) == (396, 109, ())


def test_times_with_a_zone_are_read_with_and_without_a_fraction(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00.009930+00:00,374,44",
        "2024-05-10 00:00:01+00:00,396,109",
    )
    assert read_azure(path).requests[1].arrival_s == pytest.approx(0.99007)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("yesterday,1,2", "TIMESTAMP is 'yesterday', no date and time"),
        ("2023-11-16 18:15:46,many,2", "ContextTokens is 'many', no integer"),
        ("2023-11-16,1", "GeneratedTokens is missing"),
        (",1,2", "TIMESTAMP is missing"),
    ],
)
def test_a_bad_row_of_azure_is_named_in_words(tmp_path: Path, row: str, fault: str) -> None:
    path = write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", row)
    with pytest.raises(TraceError, match=rf"row 2: {fault}; .*columns TIMESTAMP \(arrival, as"):
        read_azure(path)


def test_columns_that_a_table_lacks_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "time,ContextTokens,tokens", "2023-11-16 18:15:46,1,2")
    with pytest.raises(TraceError, match=r"row 1: no TIMESTAMP, GeneratedTokens; .*columns"):
        read_azure(path)


def write_session(path: Path, **changes: Any) -> None:
    requests = [
        {"type": "n", "in": 130, "out": 9, "hash_ids": [1, 2, 3], "think_time": 0.0},
        {"type": "tool", "total_tokens": 5},
        {"type": "s", "in": 200, "out": 9, "hash_ids": [1, 2, 4, 5], "think_time": 12.5, **changes},
    ]
    session = {"id": path.name, "block_size": 64, "requests": requests}
    path.write_bytes(gzip.compress(json.dumps(session).encode()))


def test_agents_think_between_requests_and_share_nothing(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_session(tmp_path / name)
    workload = read_agentic_coding(tmp_path, sessions_per_s=0.5)
    first, second, other, _ = workload.requests
    assert workload.block_size_tokens == 64
    assert (first.think_s, second.think_s) == (None, 12.5)
    assert first.session == second.session != other.session
    assert len(first.block_keys) == 2  # the third is not full
    assert second.block_keys[:2] == first.block_keys
    assert set(first.block_keys).isdisjoint(other.block_keys)
    assert other.arrival_s > first.arrival_s == 0.0


def test_what_is_no_session_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no"):
        read_agentic_coding(tmp_path, sessions_per_s=1)
    write_session(tmp_path / "a.json.gz", think_time=-1.0)
    with pytest.raises(TraceError, match=r"a\.json\.gz, requests\[2\]: think_time is -1"):
        read_agentic_coding(tmp_path, sessions_per_s=1)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"id": "a", "block_size": 64}'))
    with pytest.raises(
        TraceError, match=r"traces: requests is missing; .*block_size \(in tokens\)"
    ):
        read_agentic_coding(tmp_path, sessions_per_s=1)
    (tmp_path / "a.json.gz").write_bytes(b"no gzip")
    with pytest.raises(TraceError, match=r"a\.json\.gz is no session"):
        read_agentic_coding(tmp_path, sessions_per_s=1)


@pytest.mark.parametrize("read", [read_mooncake, read_azure])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, read: Any) -> None:
    with pytest.raises(TraceError, match=r"gone cannot be read"):
        read(tmp_path / "gone")


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no requests"):
        read_mooncake(write(tmp_path / "t.jsonl", ""))
