"""Finds a C++ compiler and makes a shared library of the sources, within a time limit.

Must not know what the library does, or where it is kept.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engine.errors import CompiledStepUnavailable

SOURCE_FOLDER = Path(__file__).parent / "source"
_NAMES = ("g++", "c++")
_VERSION_LIMIT_S = 10.0
_MAX_OUTPUT_BYTES = 1 << 16
"""What a compiler says beyond is read, so that it goes on, but not kept."""
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fopenmp")
"""For this machine alone."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A GNU C++ compiler: others bring an OpenMP library of their own, whose threads would stand
    beside torch's."""

    path: str
    version: str
    """First line of ``--version``."""


def find_compiler(search_path: str | None = None) -> Compiler:
    """The first one on ``search_path``, by default that of this process.

    Raises `CompiledStepUnavailable` if there is none, or only others.
    """
    refused: list[str] = []
    for name in _NAMES:
        path = shutil.which(name, path=search_path)
        if path is None:
            continue
        try:
            text = _run([path, "--version"], _VERSION_LIMIT_S)
        except CompiledStepUnavailable as error:
            refused.append(str(error))
            continue
        if "Free Software Foundation" in text:
            return Compiler(path, text.splitlines()[0].strip())
        refused.append(f"{path} is not GNU's")
    if refused:
        raise CompiledStepUnavailable("; ".join(refused))
    raise CompiledStepUnavailable("there is no g++ on this machine: install it")


def has_compiler(search_path: str | None = None) -> bool:
    """Whether one seems to be there; runs nothing."""
    return any(shutil.which(name, path=search_path) for name in _NAMES)


def source_files(folder: Path = SOURCE_FOLDER) -> list[Path]:
    """All that a library depends on, in a fixed order."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".cpp", ".h"))


def compile_library(
    compiler: Compiler, target: Path, *, openmp: Path | None, limit_s: float
) -> None:
    """Compile all sources into ``target``, linked with the OpenMP library that torch has loaded.

    Raises `CompiledStepUnavailable` if the compiler fails, or takes longer than ``limit_s``.
    """
    sources = [str(path) for path in source_files() if path.suffix == ".cpp"]
    libraries = [] if openmp is None else [str(openmp)]
    _run([compiler.path, *FLAGS, *sources, *libraries, "-o", str(target)], limit_s)
    if not target.is_file():
        raise CompiledStepUnavailable(f"{compiler.path} wrote no library")


def _run(command: Sequence[str], limit_s: float) -> str:
    """What it printed. Its whole process group ends with it: a compiler is a driver of others."""
    deadline_s = time.monotonic() + limit_s
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise CompiledStepUnavailable(
            f"{command[0]} can't be started ({error.strerror})"
        ) from error
    assert process.stdout is not None
    try:
        text = _read_text(process.stdout, deadline_s)
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise CompiledStepUnavailable(f"{command[0]} took more than {limit_s:g} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    if process.returncode != 0:
        raise CompiledStepUnavailable(
            f"{command[0]} failed with exit status {process.returncode}: {_complaint(text)}"
        )
    return text


def _read_text(pipe: IO[bytes], deadline_s: float) -> str:
    """What comes until the end. Raises ``TimeoutError``."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    kept = bytearray()
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise TimeoutError
        part = os.read(pipe.fileno(), _MAX_OUTPUT_BYTES)
        if not part:
            return kept.decode("utf-8", "replace")
        kept += part[: _MAX_OUTPUT_BYTES - len(kept)]


def _complaint(text: str) -> str:
    """The line of a compiler's output that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[0][:300]
