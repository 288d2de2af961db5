"""Static API keys: only their SHA-256 is kept, and compared in constant time."""

import hashlib
import hmac
from collections.abc import Iterable

from app.config import HASHED_KEY_PREFIX
from app.errors import AuthenticationError


class Authenticator:
    """Knows which bearer tokens are accepted; accepts everything when it was given no keys."""

    def __init__(self, api_keys: Iterable[str]) -> None:
        self._digests = [_digest_of(key) for key in api_keys]

    def check(self, authorization: bytes | None) -> None:
        """Raise ``AuthenticationError`` unless the ``Authorization`` header carries a known key."""
        if not self._digests:
            return
        if authorization is None:
            raise AuthenticationError(
                "You didn't provide an API key. Send it in the header 'Authorization: Bearer KEY'."
            )
        scheme, _, token = authorization.partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        # No early exit: the time must not tell which key came close.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != b"bearer" or not any(matches):
            raise AuthenticationError("Incorrect API key provided.")


def _digest_of(key: str) -> bytes:
    if key.startswith(HASHED_KEY_PREFIX):
        return bytes.fromhex(key.removeprefix(HASHED_KEY_PREFIX))
    return hashlib.sha256(key.encode()).digest()
