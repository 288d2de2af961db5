"""The shape of a result file: what is written, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine import Hardware
from benchmarks.result import (
    BenchmarkResult,
    CaseResult,
    ResultError,
    paired_ratio,
    read_result,
)

HARDWARE = Hardware(cpu_model="cpu", num_cores=2, cpu_flags=("avx2",), memory_bytes=1 << 30)


def make_case(**changes: Any) -> CaseResult:
    fields: dict[str, Any] = {"case": "c", "value": 1.0, "unit": "ms"}
    return CaseResult(**(fields | changes))


def make_result(*cases: CaseResult, **changes: Any) -> BenchmarkResult:
    fields: dict[str, Any] = {
        "name": "example",
        "git_sha": "abc-dirty",
        "config": {"rate_per_s": 2.5},
        "hardware": HARDWARE,
        "versions": {"python": "3.11.0"},
        "seed": 7,
        "results": cases or (CaseResult(case="ttft_p50", value=1.5, unit="ms"),),
    }
    return BenchmarkResult(**(fields | changes))


def test_a_file_has_exactly_the_keys_of_the_shape(tmp_path: Path) -> None:
    path = tmp_path / "results" / "example.json"
    make_result().write(path)
    document = json.loads(path.read_text())
    assert list(document) == [
        *("name", "git_sha", "config", "hardware", "versions", "seed", "results")
    ]
    assert document["results"] == [
        {
            "case": "ttft_p50",
            "value": 1.5,
            "unit": "ms",
            "peer": None,
            "peer_value": None,
            "ratio": None,
            "limit": None,
            "of_limit": None,
        }
    ]


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    ratio = paired_ratio([3.0, 2.0, 4.0, 2.0, 3.0], [1.0, 2.0, 1.0, 2.0, 1.0])
    written = make_result(
        CaseResult(case="a", value=3.0, unit="ms", peer="p", peer_value=1.0, ratio=ratio),
        CaseResult(case="b", value=30.0, unit="GB/s", limit=40.0),
    )
    written.write(tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == written


def test_of_limit_is_value_over_limit() -> None:
    assert CaseResult(case="b", value=30.0, unit="GB/s", limit=40.0).of_limit == 0.75


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": math.nan}, "value must be finite"),
        ({"limit": math.inf}, "limit must be finite"),
        ({"limit": 0.0}, "limit must be above 0"),
        ({"of_limit": 0.5}, "of_limit needs a limit"),
        ({"limit": 2.0, "of_limit": 0.9}, "not value / limit"),
        ({"peer": "p"}, "come together"),
        ({"peer_value": 1.0}, "come together"),
        ({"ratio": paired_ratio([1.0] * 5, [1.0] * 5)}, "needs the peer"),
        ({"case": ""}, "name and a unit"),
        ({"unit": ""}, "name and a unit"),
    ],
)
def test_contradictory_cases_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ResultError, match=message):
        make_case(**changes)


def test_a_result_without_cases_or_with_one_twice_is_refused() -> None:
    case = CaseResult(case="c", value=1.0, unit="ms")
    with pytest.raises(ResultError, match="has no cases"):
        make_result(results=())
    with pytest.raises(ResultError, match="cases twice: c"):
        make_result(case, case)


def test_wrong_types_never_reach_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    make_result().write(path)
    before = path.read_bytes()
    with pytest.raises(ResultError, match="seed"):
        make_result(seed="7").write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.mkdir()  # os.replace cannot put a file over a folder
    with pytest.raises(OSError, match=r"r\.json"):
        make_result().write(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("key", "value"), [("surprise", 1), ("seed", None), ("hardware", {}), ("results", [{}])]
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "r.json"
    make_result().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ResultError, match="not a result of this project"):
        read_result(path)
