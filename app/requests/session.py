"""Which requests belong together: a session that the client names, or a conversation's beginning.

The name is hashed with the tenant, so that nobody can aim at somebody else's sessions, and nothing
of it is kept. Must not know what a router does with it.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from app.requests.sampling_fields import SamplingFields
from app.text.chat_template import Message

SESSION_HEADER = b"x-headwater-session"
"""``x-session-id`` has another meaning for Ray Serve; ``deployments.edge`` renames it to this."""

_BYTES = 8


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


def _bytes(text: str) -> bytes:
    """A text of JSON may hold lone surrogates."""
    return text.encode("utf-8", "surrogatepass")
