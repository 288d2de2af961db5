"""Which requests belong together: a session that the client names, or a conversation's beginning.

The name is hashed with the tenant, so that nobody can aim at somebody else's sessions, and nothing
of it is kept. Must not know what a router does with it.
"""

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from app.errors import InvalidRequestError
from app.requests.sampling_fields import SamplingFields
from app.text.chat_template import Message
from engine.messages import ServiceClass

SESSION_HEADER = b"x-headwater-session"
"""``x-session-id`` has another meaning for Ray Serve; ``deployments.edge`` renames it to this."""

RETURN_HEADER = "x-headwater-return-s"
MAX_RETURN_S = 86_400.0

_BYTES = 8


class Session(NamedTuple):
    """What a request says of those that come before and after it."""

    affinity: int | None = None
    """As ``affinity_of`` has it."""
    is_named: bool = False
    """By the client, and not only by how the conversation begins."""
    expected_return_s: float | None = None
    """From the end of the answer to the next request, as the client says."""


def session_of(
    request: SamplingFields, headers: Iterable[tuple[bytes, bytes]], beginning: Sequence[bytes]
) -> Session:
    """As ``affinity_of``. Raises ``InvalidRequestError`` for a return time that is none."""
    by_name = dict(headers)
    names = (by_name.get(SESSION_HEADER), request.prompt_cache_key, request.user)
    value = by_name.get(RETURN_HEADER.encode())
    return Session(
        affinity_of(request, by_name.items(), beginning),
        any(names),
        None if value is None else _parse_return_s(value),
    )


def session_kind(service_class: ServiceClass, session: Session) -> str:
    """Return times are learned by it: somebody who reads comes back later than a program does, and
    what nobody named may never come back.
    """
    name = service_class.name.lower()
    return f"{name}/named" if session.is_named else name


def affinity_of(
    request: SamplingFields, headers: Iterable[tuple[bytes, bytes]], beginning: Sequence[bytes]
) -> int | None:
    """64 bits, equal for requests of one session of one tenant; None if nothing tells.

    ``headers`` with lower-case names, as in an ASGI scope. ``beginning``: what stays the same
    throughout a conversation, for those that name no session; may be empty.
    """
    by_name = dict(headers)
    session = by_name.get(SESSION_HEADER)
    if session:
        parts: Sequence[bytes] = (b"session", session)
    elif request.prompt_cache_key:
        parts = (b"key", _bytes(request.prompt_cache_key))
    elif request.user:
        parts = (b"user", _bytes(request.user))
    elif beginning:
        parts = (b"beginning", *beginning)
    else:
        return None
    tenant = by_name.get(b"authorization", b"")
    digest = blake2b(digest_size=_BYTES)
    for part in (tenant, _bytes(request.cache_salt or ""), *parts):
        digest.update(len(part).to_bytes(_BYTES, "big"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def beginning_of(messages: Iterable[Message]) -> list[bytes]:
    """The messages up to the first one of the user: later turns of a conversation repeat them, and
    other conversations with the same system prompt don't.
    """
    parts: list[bytes] = []
    for message in messages:
        parts += [_bytes(message["role"]), _bytes(message["content"])]
        if message["role"] == "user":
            break
    return parts


def _parse_return_s(value: bytes) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_RETURN_S:
        raise InvalidRequestError(
            f"The header '{RETURN_HEADER}' must be a number of seconds above 0 and at most "
            f"{MAX_RETURN_S:.0f}.",
            param=RETURN_HEADER,
        )
    return seconds


def _bytes(text: str) -> bytes:
    """A text of JSON may hold lone surrogates."""
    return text.encode("utf-8", "surrogatepass")
