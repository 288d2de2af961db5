"""Latencies from streams whose event times are known."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from benchmarks.timeline import RequestRecord, SseDecoder, StreamRecorder


def event(payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def delta(**fields: Any) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": None}
    return event({"object": "chat.completion.chunk", "choices": [choice], "usage": None})


ROLE = delta(role="assistant", content="")
USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }
)
DONE = b"data: [DONE]\n\n"


def record(*events: tuple[float, bytes], status: int = 200) -> RequestRecord:
    recorder = StreamRecorder(intended_s=100.0)
    for now_s, data in events:
        recorder.on_body(now_s, data)
    return recorder.finish(sent_s=100.25, end_s=200.0, status=status)


def test_latencies_count_from_the_intended_send_and_only_text_counts() -> None:
    measured = record(
        (100.5, ROLE),
        (101.0, delta(content="Hi")),
        (101.5, delta(content=" there")),
        (101.75, b": keep-alive\n\n"),
        (103.0, delta(content="!")),
        (103.5, delta()),
        (104.0, USAGE + DONE),
    )
    assert measured.error is None
    assert measured.ttft_s == 1.0
    assert measured.gaps_s == [0.5, 1.5]
    assert measured.e2e_s == 4.0
    assert measured.tpot_s == (4.0 - 1.0) / (4 - 1)
    assert measured.completion_tokens == 4
    assert (measured.prompt_tokens, measured.cached_tokens) == (9, 8)
    assert measured.send_lag_s == 0.25


def test_chunks_that_arrive_together_have_no_gap_and_are_all_counted() -> None:
    both = delta(content="a") + delta(content="b")
    measured = record((101.0, both), (102.0, delta(content="c") + USAGE + DONE))
    assert measured.gaps_s == [0.0, 1.0]


def test_an_event_counts_when_its_last_byte_arrives() -> None:
    first = delta(content="a")
    measured = record((101.0, first[:20]), (102.0, first[20:]), (103.0, USAGE + DONE))
    assert measured.ttft_s == 2.0


def test_a_one_token_answer_has_no_time_per_output_token() -> None:
    usage = event({"choices": [], "usage": {"completion_tokens": 1}})
    measured = record((101.0, delta(content="a")), (102.0, usage + DONE))
    assert measured.tpot_s is None
    assert measured.gaps_s == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (delta(content="a") + USAGE, r"without \[DONE\]"),
        (delta(content="a") + DONE, "no usage chunk"),
        (ROLE + USAGE + DONE, "no text"),
        (delta(content="a") + event({"error": {"message": "worker died"}}) + DONE, "worker died"),
        (b'data: {"choices": \n\n', "not a chat completion chunk"),
        (b"data: 5\n\n", "not a chat completion chunk"),
        (b'{"object": "chat.completion"}', r"without \[DONE\]"),
    ],
)
def test_a_stream_that_went_wrong_is_an_error_and_counts_no_tokens(
    body: bytes, message: str
) -> None:
    measured = record((101.0, body))
    assert measured.error is not None
    assert measured.completion_tokens == 0
    assert re.search(message, measured.error)


def test_the_message_of_an_error_response_is_kept() -> None:
    measured = record((101.0, b'{"error": {"message": "no such model"}}'), status=404)
    assert measured.error == "HTTP 404: no such model"
    measured = record((101.0, b"<html>Bad\n Gateway</html>"), status=502)
    assert measured.error == "HTTP 502: <html>Bad Gateway</html>"


def test_a_broken_exchange_keeps_its_times() -> None:
    recorder = StreamRecorder(intended_s=100.0)
    recorder.on_body(101.0, delta(content="a"))
    measured = recorder.fail(sent_s=100.0, end_s=105.0, error="reset")
    assert measured.error == "reset"
    assert measured.e2e_s == 5.0


def test_sse_payloads_survive_any_cut_and_crlf() -> None:
    raw = b"event: x\r\ndata: one\r\n\r\n: note\ndata:two\n\ndata: tail"
    decoder = SseDecoder()
    assert [part for i in range(len(raw)) for part in decoder.feed(raw[i : i + 1])] == [
        b"one",
        b"two",
    ]
    assert decoder.feed(b"\n") == [b"tail"]
