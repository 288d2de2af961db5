"""Reads a request's body, bounded, and parses its JSON. Must not know what the JSON means."""

import asyncio
import gc
import json
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope

from app.errors import ApiError, BodyTimeoutError, BodyTooLargeError, InvalidRequestError

BODY_TIMEOUT_S = 60.0
"""A client that takes longer to send its body holds one of the gateway's places for nothing."""

MAX_STRUCTURES = 300_000
MAX_COMMAS = 1_000_000
"""Millions of tiny arrays, keys or numbers would hold up all streams for a second; these do for
some 50 ms.
"""

_MIN_UNCOLLECTED_BYTES = 64 * 1024

_MAX_NAN_BYTES = 1024 * 1024
"""The parser that knows NaN is slow."""

_MAX_DRAINED_BYTES = 64 * 1024 * 1024
"""Thrown away of a body that is too large: a client that is still sending misses the answer."""


class ClientGoneError(Exception):
    """The client closed the connection; nobody reads an answer."""


async def read_body(
    scope: Scope, receive: Receive, max_body_bytes: int, timeout_s: float = BODY_TIMEOUT_S
) -> bytes:
    """The whole body.

    Raises ``InvalidRequestError`` for a compressed one, ``BodyTooLargeError`` as soon as it is
    known to be over the limit, ``BodyTimeoutError`` when it is not there in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(scope, receive, max_body_bytes)
    except TimeoutError as error:
        raise BodyTimeoutError(timeout_s) from error


async def _read(scope: Scope, receive: Receive, max_body_bytes: int) -> bytes:
    headers = dict(scope["headers"])
    refusal = _refusal_of_headers(headers, max_body_bytes)
    if refusal is not None:
        if b"expect" not in headers:
            await _drain(receive, 0)
        raise refusal
    chunks: list[bytes] = []
    num_bytes = 0
    while True:
        message = await _next(receive)
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_body_bytes:
            if message.get("more_body", False):
                await _drain(receive, num_bytes)
            raise BodyTooLargeError(max_body_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _refusal_of_headers(headers: Mapping[bytes, bytes], max_body_bytes: int) -> ApiError | None:
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.lower() != "identity":
        return InvalidRequestError(
            f"The Content-Encoding '{encoding[:50]}' is not supported: send the JSON as it is."
        )
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > max_body_bytes:
        return BodyTooLargeError(max_body_bytes)
    return None


def parse_json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object; raises ``InvalidRequestError`` for anything else."""
    if len(body) > MAX_STRUCTURES:
        _check_num_values(body)
    try:
        value = _parse(body)
    except orjson.JSONDecodeError as error:
        value = _parse_with_nan(body, error)
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object.")
    return value


def _parse(body: bytes) -> Any:
    """Every new array or object may set off a garbage collection of all that lives in the process:
    100 ms with a million objects. One afterwards is enough.
    """
    if len(body) < _MIN_UNCOLLECTED_BYTES or not gc.isenabled():
        return orjson.loads(body)
    gc.disable()
    try:
        return orjson.loads(body)
    finally:
        gc.enable()


def _check_num_values(body: bytes) -> None:
    """Counts what is in texts, too: telling it apart takes as long as parsing."""
    num_structures = body.count(b"[") + body.count(b"{") + body.count(b":")
    if num_structures > MAX_STRUCTURES or body.count(b",") > MAX_COMMAS:
        raise InvalidRequestError(
            f"The request body must hold at most {MAX_STRUCTURES} opening brackets, opening "
            f"braces and colons, and at most {MAX_COMMAS} commas."
        )


def _parse_with_nan(body: bytes, error: orjson.JSONDecodeError) -> Any:
    """NaN and Infinity are no JSON, but clients write them: let validation name the field."""
    if len(body) <= _MAX_NAN_BYTES and (b"NaN" in body or b"Infinity" in body):
        try:
            value = json.loads(body)
            orjson.dumps(value)  # refuses what json alone lets through, such as lone surrogates
        except (ValueError, TypeError, RecursionError):
            pass
        else:
            return value
    raise InvalidRequestError(f"The request body is not valid JSON: {error.msg}.") from error


async def _next(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


async def _drain(receive: Receive, num_bytes: int) -> None:
    while num_bytes < _MAX_DRAINED_BYTES:
        message = await _next(receive)
        num_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
