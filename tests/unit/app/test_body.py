"""Reading a request's body from a client that takes its time."""

import asyncio

import pytest
from starlette.types import Message

from app.body import read_body
from app.errors import BodyTimeoutError


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
