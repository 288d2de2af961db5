"""The response parser gives the same body however the bytes are cut, and refuses what is broken."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.http_response import HttpError, ResponseParser

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
WITH_LENGTH = HEAD + b"Content-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    + HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5;x=y\r\nworld\r\n0\r\nTrailer: t\r\n\r\n"
)


@given(st.sampled_from([WITH_LENGTH, CHUNKED]), st.lists(st.integers(0, 200)))
def test_the_body_does_not_depend_on_how_the_bytes_are_cut(raw: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    parser = ResponseParser()
    body = b""
    done_after = []
    for begin, end in pairwise(edges):
        body += parser.feed(raw[begin:end])
        done_after.append(parser.is_done)
    assert body == b"hello world"
    assert done_after == [False] * (len(edges) - 2) + [True]
    assert parser.keep_alive
    assert parser.status == 200
    assert parser.headers["content-type"] == "text/event-stream"


def test_body_bytes_are_given_out_before_their_chunk_is_whole() -> None:
    parser = ResponseParser()
    body = parser.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\nfirst half")
    assert body == b"first half"


def test_a_body_without_framing_ends_with_the_connection() -> None:
    parser = ResponseParser()
    assert parser.feed(HEAD + b"\r\nhello") == b"hello"
    parser.feed_eof()
    assert parser.is_done
    assert not parser.keep_alive


def test_connection_close_is_respected() -> None:
    parser = ResponseParser()
    parser.feed(HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
    assert parser.is_done
    assert not parser.keep_alive


@pytest.mark.parametrize("raw", [b"", HEAD, WITH_LENGTH[:-1], CHUNKED[:-1]])
def test_a_response_cut_short_is_an_error(raw: bytes) -> None:
    parser = ResponseParser()
    parser.feed(raw)
    with pytest.raises(HttpError, match="before the end"):
        parser.feed_eof()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "bad Content-Length"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "bad chunk size"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n", "bad chunk size"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n", "longer than its size"),
        (WITH_LENGTH + b"more", "after the end"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000, "too large"),
    ],
)
def test_what_is_not_a_response_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(HttpError, match=message):
        ResponseParser().feed(raw)
