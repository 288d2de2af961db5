"""Starts a node's forge. Imports no torch."""

import subprocess
import sys
from pathlib import Path

from engine.forge.code import SOURCE_ROOT


def start_forge(socket_path: Path) -> subprocess.Popen[bytes]:
    """A forge that will listen at ``socket_path``, in a folder of this user alone that it makes.

    It takes some seconds until it answers; who asks before starts ranks without it. It ends when
    the ``stdin`` of the result is closed, so with this process at the latest; its ranks go on. They
    have the environment of their fronts, but what a library read of one when it was loaded
    (``OMP_PROC_BIND``, ``MALLOC_*``), it read of this process's.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "engine.forge", "--socket", str(socket_path)],
        stdin=subprocess.PIPE,
        cwd=SOURCE_ROOT,  # where -m finds the package, installed or not
        start_new_session=True,
    )
