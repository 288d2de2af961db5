"""A rank in an interpreter of its own, a child of this process. Imports no torch."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SOURCE_ROOT = Path(__file__).resolve().parents[1]


class SpawnedProcess:
    """Runs from when it is made."""

    def __init__(self, module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> None:
        """``python -m module`` with ``arguments``; ``descriptors``: the pipe to it, then links.

        Call from a thread that lives as long as the process shall: Linux takes the end of the
        thread for the end of the parent.
        """
        pipe, *links = descriptors
        own = ["--parent-pid", os.getpid(), "--fd", pipe]
        for link in links:
            own += ["--link-fd", link]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, *map(str, own)],
            pass_fds=descriptors,
            cwd=_SOURCE_ROOT,  # where -m finds the package, installed or not
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the parent, which drains first
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
