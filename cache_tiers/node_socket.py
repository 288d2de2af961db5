"""The Unix socket at which a node's cache listens, in a folder that only its user can enter."""

import os
import socket
import stat
from pathlib import Path

from cache_tiers.tier import TierError
from wire.listener import MAX_UNIX_PATH_BYTES

_BACKLOG = 64


def listen(path: Path) -> socket.socket:
    """A listening socket at ``path``; makes the folder, and replaces what a cache that was killed
    left there. Raises ``TierError`` if the folder is open to others or another cache listens.
    """
    if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
        raise TierError(f"{path} is longer than {MAX_UNIX_PATH_BYTES} bytes: use a shorter folder")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.parent.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise TierError(f"{path.parent} must belong to this user alone (mode 0700)")
    if _is_listening(path):
        raise TierError(f"another node cache listens at {path}: end it, or use another path")
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
