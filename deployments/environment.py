"""The only module that reads the process environment; all others get values as arguments.

| variable         | meaning                                            | default              |
|------------------|----------------------------------------------------|----------------------|
| `HEADWATER_HOME` | where models are kept                              | `~/.cache/headwater` |
| `RAY_ADDRESS`    | a running cluster that Ray's tools would connect to | none                |
| `TMPDIR`         | where short-lived folders are made                 | `/tmp`               |
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

DEFAULT_HOME = "~/.cache/headwater"
SHORTEST_TEMP_ROOT = Path("/tmp")  # noqa: S108  only ever the parent of mkdtemp's 0700 folder


def headwater_home() -> Path:
    """Where models are kept on this node."""
    return Path(os.environ.get("HEADWATER_HOME") or DEFAULT_HOME).expanduser().resolve()


def ray_address() -> str | None:
    """The running cluster that Ray's tools would connect to by themselves."""
    return os.environ.get("RAY_ADDRESS") or None


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `overrides`, for a child."""
    return {**os.environ, **overrides}


def make_private_dir(prefix: str, *, max_bytes: int) -> Path:
    """A new folder, readable by this user alone, whose path has at most `max_bytes` bytes.

    Unix sockets in it limit the length (about 100 bytes with the file's name), so a long `TMPDIR`
    gives way to `/tmp`. The caller removes the folder.
    """
    for root in (Path(tempfile.gettempdir()), SHORTEST_TEMP_ROOT):
        # mkdtemp appends eight characters.
        if len(os.fsencode(root / prefix)) + 8 <= max_bytes:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    raise ValueError(f"no temporary folder has a path of at most {max_bytes} bytes: unset TMPDIR")
