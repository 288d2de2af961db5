"""What a measurement ran on: processor, memory, package versions, commit.

Reads the machine once, when asked. Must not import what it names the version of: the benchmark
of an HTTP server shall not load torch to say that it is installed.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import msgspec

REPOSITORY = Path(__file__).resolve().parent.parent
UNKNOWN_SHA = "unknown"

# The flags that decide which matrix kernels a processor can use.
CPU_FLAGS_OF_INTEREST = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
)

PACKAGES_OF_INTEREST = (
    "headwater",
    "ray",
    "torch",
    "xformers",
    "transformers",
    "tokenizers",
    "safetensors",
    "starlette",
    "uvicorn",
    "msgspec",
    "orjson",
)


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine of a measurement."""

    cpu_model: str
    num_cores: int  # those this process may run on
    cpu_flags: tuple[str, ...]  # of CPU_FLAGS_OF_INTEREST, those present
    memory_bytes: int
    accelerators: tuple[str, ...] = ()


def collect_hardware(accelerators: Iterable[str] = ()) -> Hardware:
    """Describe this machine; the caller names the accelerators it used, if any."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    return Hardware(
        cpu_model=_cpuinfo_value(text, "model name") or platform.processor() or platform.machine(),
        num_cores=_num_usable_cores(),
        cpu_flags=parse_cpu_flags(text),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        accelerators=tuple(accelerators),
    )


def parse_cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    """The flags of interest in the text of /proc/cpuinfo (`flags` on x86, `Features` on ARM)."""
    present = set(
        (_cpuinfo_value(cpuinfo, "flags") or _cpuinfo_value(cpuinfo, "Features") or "").split()
    )
    return tuple(flag for flag in CPU_FLAGS_OF_INTEREST if flag in present)


def collect_versions(packages: Iterable[str] = PACKAGES_OF_INTEREST) -> dict[str, str]:
    """Versions of Python and of those `packages` which are installed, by name."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def collect_git_sha(repository: Path = REPOSITORY) -> str:
    """The commit of the work tree, with `-dirty` if a tracked file differs from it.

    `unknown` outside a repository, such as in an installed copy.
    """
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],  # noqa: S607
            cwd=repository,
            capture_output=True,
            text=True,
            timeout=30.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN_SHA
    return described.stdout.strip() or UNKNOWN_SHA


def _cpuinfo_value(cpuinfo: str, key: str) -> str | None:
    for line in cpuinfo.splitlines():
        name, separator, value = line.partition(":")
        if separator and name.strip() == key:
            return value.strip()
    return None


def _num_usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
