"""Requests of a replay and its answers come back as they were written, or the fault is named."""

from pathlib import Path

import pytest

from engine.replay_file import (
    ReplayedAnswer,
    ReplayFileError,
    ReplayRequest,
    read_answers,
    read_requests,
    write_rows,
)

LATE, EARLY = ReplayRequest(2.0, 30, 4), ReplayRequest(0.5, 10, 1)


def test_requests_come_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    write_rows(path, [LATE, EARLY])
    assert read_requests(path) == [EARLY, LATE]


def test_answers_come_back(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    answers = [ReplayedAnswer(EARLY, 0.6, 0.6), ReplayedAnswer(LATE, 2.5, 3.0)]
    write_rows(path, answers)
    assert read_answers(path) == answers


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[]", "holds no requests"),
        ("{", "is no list of ReplayRequest"),
        ("[[1]]", "is no list of ReplayRequest"),
        ('[{"arrival_s": 1}]', "num_prompt_tokens"),
        (
            '[{"arrival_s": -1, "num_prompt_tokens": 3, "num_answer_tokens": 1}]',
            "request 0: it needs",
        ),
        (
            '[{"arrival_s": 0, "num_prompt_tokens": 0, "num_answer_tokens": 1}]',
            "request 0: it needs",
        ),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "requests.json"
    path.write_text(content)
    with pytest.raises(ReplayFileError, match=complaint):
        read_requests(path)
    with pytest.raises(ReplayFileError, match="cannot be read"):
        read_answers(tmp_path / "absent.json")
