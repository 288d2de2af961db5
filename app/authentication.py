"""Static API keys: only their SHA-256 is kept, and compared in constant time."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from app.config import HASHED_KEY_PREFIX
from app.errors import AuthenticationError, PermissionDeniedError


class Authenticator:
    """Knows which bearer tokens are accepted; accepts everything when it was given no keys."""

    def __init__(self, api_keys: Iterable[str], admin_keys: Iterable[str] = ()) -> None:
        """Admin keys are good for everything; without API keys only operators need one."""
        self._digests = [_digest_of(key) for key in api_keys]
        self._admin_digests = [_digest_of(key) for key in admin_keys]

    def check(self, authorization: bytes | None) -> None:
        """Raise ``AuthenticationError`` unless the ``Authorization`` header carries a known key."""
        if self._digests:
            _check_any(authorization, (*self._digests, *self._admin_digests))

    def check_admin(self, authorization: bytes | None) -> None:
        """As ``check``, and raise ``PermissionDeniedError`` for a key that is no admin's."""
        known = (*self._digests, *self._admin_digests)
        if not known:
            return
        digest = _check_any(authorization, known)
        if not _is_among(digest, self._admin_digests):
            raise PermissionDeniedError(
                "This needs an admin key: one of the gateway's 'admin_keys', not of its 'api_keys'."
            )


def _check_any(authorization: bytes | None, known: Sequence[bytes]) -> bytes:
    if authorization is None:
        raise AuthenticationError(
            "You didn't provide an API key. Send it in the header 'Authorization: Bearer KEY'."
        )
    scheme, _, token = authorization.partition(b" ")
    digest = hashlib.sha256(token.strip()).digest()
    if not _is_among(digest, known) or scheme.lower() != b"bearer":
        raise AuthenticationError("Incorrect API key provided.")
    return digest


def _is_among(digest: bytes, known: Sequence[bytes]) -> bool:
    # No early exit: the time must not tell which key came close.
    matches = [hmac.compare_digest(digest, one) for one in known]
    return any(matches)


def _digest_of(key: str) -> bytes:
    if key.startswith(HASHED_KEY_PREFIX):
        return bytes.fromhex(key.removeprefix(HASHED_KEY_PREFIX))
    return hashlib.sha256(key.encode()).digest()
