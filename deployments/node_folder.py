"""The folder of a node cache's sockets: the same one for each cache that a node has in its life.

Must not know what listens there.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 100
"""Below the kernel's limit of 104 to 108 bytes."""
_SOCKET_NAME = "cache.sock"
_FORGE_NAME = "forge.sock"


class NodeFolder:
    """Its path is known before it is there: an engine may look for a cache that is yet to come."""

    def __init__(self, roots: Sequence[Path], node_id: str) -> None:
        """In the first of ``roots`` that leads to a path that a socket can have. Raises
        ``ValueError`` if there is none.
        """
        name = f"hwc-{os.getuid()}-{hashlib.sha256(node_id.encode()).hexdigest()[:16]}"
        paths = [root / name for root in roots]
        short = [
            path for path in paths if len(os.fsencode(path / _SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES
        ]
        if not short:
            raise ValueError("no temporary folder has a path short enough: unset TMPDIR")
        self.path = short[0]

    @property
    def socket_path(self) -> Path:
        return self.path / _SOCKET_NAME

    @property
    def forge_path(self) -> Path:
        """Of the forge's socket; no longer than ``socket_path``."""
        return self.path / _FORGE_NAME

    @property
    def identity_path(self) -> Path:
        """For ``node_identity``."""
        return self.path / "identity.json"

    def make(self) -> None:
        """For this user alone; fine when it is there already. Raises ``ValueError`` if it is
        another user's.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        status = self.path.lstat()
        if self.path.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ValueError(
                f"{self.path} is not a folder of this user alone (mode 0700): remove it"
            )

    def remove(self) -> None:
        """Fine when it is gone already."""
        shutil.rmtree(self.path, ignore_errors=True)
