import io
import json

import pytest

from benchmarks.engine_cases import Case, decode_case
from benchmarks.engine_timing import Speed
from benchmarks.peer_protocol import (
    PeerReplyError,
    decode_speed,
    decode_versions,
    encode_case,
    serve,
)


def answers_to(*cases: Case) -> list[bytes]:
    def measure(case: Case) -> Speed:
        if case.kind == "mixed":
            raise ValueError("a static batch can't be joined")
        return Speed(case.num_seqs * 10.0, 0.1)

    said = io.StringIO()
    serve([encode_case(case).decode() for case in cases], said, measure, ("msgspec",))
    return said.getvalue().encode().splitlines(keepends=True)


def test_a_case_goes_there_and_its_speed_comes_back() -> None:
    ready, answer = answers_to(decode_case("decode_bs4", 4))
    assert list(decode_versions(ready)) == ["msgspec"]
    assert decode_speed(answer) == Speed(40.0, 0.1)


def test_a_failed_case_is_told_and_the_next_one_measured() -> None:
    _, failed, answer = answers_to(Case("m", "mixed", 1, 8), decode_case("d", 1))
    with pytest.raises(PeerReplyError, match="ValueError: a static batch can't be joined"):
        decode_speed(failed)
    assert decode_speed(answer) == Speed(10.0, 0.1)


@pytest.mark.parametrize(
    "line",
    [b"WARNING: something\n", b"[]\n", b"{}\n", json.dumps({"tokens_per_s": None}).encode()],
)
def test_what_is_no_speed_is_refused(line: bytes) -> None:
    with pytest.raises(PeerReplyError):
        decode_speed(line)


def test_a_first_line_without_versions_is_refused() -> None:
    with pytest.raises(PeerReplyError, match="expected its versions"):
        decode_versions(b'{"tokens_per_s": 1}\n')
