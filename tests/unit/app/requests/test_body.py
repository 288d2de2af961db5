"""Reading a request's body: from a client that takes its time, and of hostile sizes."""

import asyncio
import contextlib
import gc
import math

import pytest
from starlette.types import Message

from app.errors import BodyTimeoutError, InvalidRequestError
from app.requests.body import parse_json_object, read_body


@pytest.mark.parametrize("length", [b"10", b"10000000"], ids=["small", "over the limit"])
async def test_a_body_that_does_not_arrive_is_given_up(length: bytes) -> None:
    async def receive() -> Message:
        """A byte now and then: the connection never looks idle."""
        await asyncio.sleep(0.005)
        return {"type": "http.request", "body": b"x", "more_body": True}

    scope = {"type": "http", "headers": [(b"content-length", length)]}
    async with asyncio.timeout(2):
        with pytest.raises(BodyTimeoutError) as caught:
            await read_body(scope, receive, max_body_bytes=1_000_000, timeout_s=0.05)
    assert caught.value.status == 408
    assert "0.05 seconds" in caught.value.message


TOO_MANY = {
    "arrays": b"[" + b"[]," * 300_000 + b"0]",
    "objects": b"[" + b"{}," * 300_000 + b"0]",
    "keys": b"{" + b'"a":0,' * 300_000 + b'"b":0}',
    "numbers": b"[" + b"0," * 1_000_001 + b"0]",
}


@pytest.mark.parametrize("value", TOO_MANY.values(), ids=list(TOO_MANY))
def test_more_values_than_can_be_read_at_once_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="must hold at most 300000"):
        parse_json_object(b'{"x":' + value + b"}")


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"[]," * 299_000 + b"0]",
        b"[" + b"0," * 999_000 + b"0]",
        b'"' + b"a, b. " * 600_000 + b'"',
        b"[" * 1000 + b"]" * 1000,
    ],
    ids=["arrays", "numbers", "text", "nested"],
)
def test_large_bodies_below_the_bounds_are_read(value: bytes) -> None:
    assert parse_json_object(b'{"x":' + value + b"}").keys() == {"x"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_left_to_validation(number: str) -> None:
    value = parse_json_object(b'{"x": %s}' % number.encode())["x"]
    assert isinstance(value, float)
    assert not math.isfinite(value)
    with pytest.raises(InvalidRequestError, match="not valid JSON"):  # the slow parser's bound
        parse_json_object(b'{"x": %s, "y": "%s"}' % (number.encode(), b"a" * 2**20))


@pytest.mark.parametrize("body", [b'{"x": [%s0]}' % (b"[]," * 50_000), b"{" + b" " * 100_000])
def test_the_garbage_collector_runs_again_after_a_large_body(body: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        parse_json_object(body)
    assert gc.isenabled()


def test_a_large_body_sets_off_no_full_collection_while_it_is_parsed() -> None:
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    value = parse_json_object(b'{"x": [%s0]}' % (b"[]," * 290_000))
    assert gc.get_stats()[2]["collections"] <= before + 1
    assert len(value["x"]) == 290_001
