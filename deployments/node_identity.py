"""What the next cache of a node takes over from the last one, so that who knew where that was
reached finds it again: its secret and its ports, in a file of this user alone.

Must not know who asks for them.
"""

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

SECRET_BYTES = 32
_MAX_FILE_BYTES = 4096


class _File(msgspec.Struct, frozen=True):
    secret: str
    peer_port: int
    scrape_port: int
    weights_port: int = 0


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """By which other nodes, and who scrapes, know a node's cache."""

    secret: bytes = field(repr=False)
    peer_port: int = 0
    """0: any that is free, as for the next one."""
    scrape_port: int = 0
    weights_port: int = 0
    """Of the models' weights."""


def read_identity(path: Path) -> NodeIdentity:
    """A new one where there is none, or nothing that was written by ``write_identity``."""
    try:
        with path.open("rb") as file:
            stored = msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=_File)
        secret = bytes.fromhex(stored.secret)
    except (OSError, ValueError, msgspec.MsgspecError):
        return NodeIdentity(secrets.token_bytes(SECRET_BYTES))
    ports = (stored.peer_port, stored.scrape_port, stored.weights_port)
    if len(secret) != SECRET_BYTES or not all(0 <= port <= 65535 for port in ports):
        return NodeIdentity(secrets.token_bytes(SECRET_BYTES))
    return NodeIdentity(secret, *ports)


def write_identity(path: Path, identity: NodeIdentity) -> None:
    """Whole or not at all. Raises ``OSError``."""
    ports = (identity.peer_port, identity.scrape_port, identity.weights_port)
    content = _File(identity.secret.hex(), *ports)
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(content))
    partial.rename(path)
