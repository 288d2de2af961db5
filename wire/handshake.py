"""Mutual challenge-response over a shared secret, before anything else is said. No I/O.

    client                                   server
    HELLO  version, nonce_c     ─────────▶
                                ◀─────────   HELLO  version, nonce_s
    PROOF  hmac(client, …)      ─────────▶
                                ◀─────────   PROOF  hmac(server, …)  or  REFUSED reason

A proof is HMAC-SHA256 over (role of the prover, version, both nonces). The secret never travels.
The role is part of it, so a proof reflected to its maker is worthless; the server proves itself
only to a client that has done so, so knocking at a port yields nothing to guess the secret from. It
authenticates the peer, it does not encrypt: connections belong on a private network.
"""

import hmac
import secrets
from enum import Enum

from wire.errors import HandshakeError

PROTOCOL_VERSION = 1
MIN_SECRET_BYTES = 16
MAX_HANDSHAKE_FRAME_BYTES = 512

_MAGIC = b"headwater"
_NONCE_BYTES = 32
_HELLO, _PROOF, _REFUSED = b"H", b"P", b"R"
_HELLO_BYTES = len(_HELLO) + len(_MAGIC) + 2 + _NONCE_BYTES


class Role(Enum):
    """Which side of the connection one is."""

    CLIENT = b"client"
    SERVER = b"server"

    @property
    def other(self) -> "Role":
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


class Handshake:
    """One side of one handshake. Call order: ``hello`` once, then ``receive`` until ``is_done``."""

    def __init__(self, role: Role, secret: bytes, version: int = PROTOCOL_VERSION) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the shared secret must have at least {MIN_SECRET_BYTES} bytes")
        self.is_done = False
        self._role = role
        self._secret = secret
        self._version = version
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._peer_nonce: bytes | None = None

    def hello(self) -> bytes:
        """The first frame to send; both sides may send it at once."""
        return _HELLO + _MAGIC + self._version.to_bytes(2, "little") + self._nonce

    def receive(self, frame: bytes) -> bytes | None:
        """Take the peer's next frame; returns the frame to answer with, if any.

        Raises ``HandshakeError``; ``refusal`` then makes the frame that tells the peer.
        """
        assert not self.is_done
        if frame[:1] == _REFUSED:
            words = frame[1:].decode("utf-8", "replace")
            raise HandshakeError(f"the peer refused us: {words}")
        if self._peer_nonce is None:
            self._peer_nonce = self._check_hello(frame)
            return self._proof(self._role) if self._role is Role.CLIENT else None
        if not hmac.compare_digest(frame, self._proof(self._role.other)):
            raise HandshakeError(
                "the secrets of the two sides differ: give all processes the same one"
            )
        self.is_done = True
        return self._proof(self._role) if self._role is Role.SERVER else None

    def _check_hello(self, frame: bytes) -> bytes:
        prefix = _HELLO + _MAGIC
        if len(frame) != _HELLO_BYTES or not frame.startswith(prefix):
            raise HandshakeError("the peer does not speak our protocol")
        version = int.from_bytes(frame[len(prefix) : len(prefix) + 2], "little")
        if version != self._version:
            raise HandshakeError(
                f"the {self._role.value.decode()} speaks protocol version {self._version}, the "
                f"{self._role.other.value.decode()} {version}: run the same release on both sides"
            )
        return frame[-_NONCE_BYTES:]

    def _proof(self, prover: Role) -> bytes:
        assert self._peer_nonce is not None
        is_client = self._role is Role.CLIENT
        nonces = (self._nonce, self._peer_nonce) if is_client else (self._peer_nonce, self._nonce)
        signed = b"".join((_MAGIC, prover.value, self._version.to_bytes(2, "little"), *nonces))
        return _PROOF + hmac.digest(self._secret, signed, "sha256")


def refusal(error: HandshakeError) -> bytes:
    """The frame that tells the peer why it was refused."""
    return _REFUSED + str(error).encode()[: MAX_HANDSHAKE_FRAME_BYTES - 1]
