"""The servers that `benchmarks.serving --peer` starts: command, environment and address of each.

Describes them; starts nothing. All get the same model folder, dtype and cores, and each listens on
loopback alone.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import REPOSITORY
from benchmarks.serving_log import PathNames
from benchmarks.serving_options import Target, parse_target

OURS = "headwater"
HOST = "127.0.0.1"
DTYPE = "bfloat16"
MAX_MODEL_LEN = 2048
KV_CACHE_GIB = 1
RAY_LLM_SCRIPT = REPOSITORY / "benchmarks" / "serving_ray_llm.py"
MODEL_BUILDER = "deployments.build:build_model"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server to be started, or with no command one that runs already."""

    name: str
    target: Target
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """What is set besides the environment of this process."""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name, and the versions of what it runs on."""
        versions = ", ".join(f"{package} {version}" for package, version in self.versions.items())
        return f"{self.name} ({versions})" if versions else self.name

    def describe(self, names: PathNames) -> dict[str, Any]:
        """For the result file: what to type to start it."""
        return {
            "url": self.target.url,
            "command": names.replace_in(shlex.join(self.command)) or "(ran already)",
            "environment": {
                key: names.replace_in(value) for key, value in self.environment.items()
            },
            "versions": dict(self.versions),
        }


def running(url: str, model: str) -> Contestant:
    """Ours, started by somebody else."""
    return Contestant(OURS, parse_target(url, model=model, api_key=None, allow_remote=False))


def headwater(file: Path, model: str, port: int) -> Contestant:
    """What `headwater serve FILE` runs."""
    command = (sys.executable, "-m", "deployments.cli", "serve", str(file))
    return Contestant(OURS, _target(port, model), command, {"PYTHONPATH": str(REPOSITORY)})


def vllm_server(
    python: Path, model_folder: Path, model: str, port: int, environment: Mapping[str, str]
) -> Contestant:
    """vLLM's own server."""
    command = (
        *(str(python.with_name("vllm")), "serve", str(model_folder)),
        *("--host", HOST, "--port", str(port), "--served-model-name", model),
        *("--dtype", DTYPE, "--max-model-len", str(MAX_MODEL_LEN)),
    )
    return Contestant("vllm-server", _target(port, model), command, environment)


def ray_serve_llm(
    python: Path, model_folder: Path, model: str, port: int, environment: Mapping[str, str]
) -> Contestant:
    """ray.serve.llm over the same vLLM, with a Ray of its own."""
    command = (
        # Without its own folder on the path: modules there have names of the standard library.
        *(str(python), "-P", str(RAY_LLM_SCRIPT)),
        *("--model-folder", str(model_folder), "--model-id", model, "--port", str(port)),
        *("--dtype", DTYPE, "--max-model-len", str(MAX_MODEL_LEN)),
    )
    ray = {
        # As `headwater serve` starts it: on loopback, at normal priority.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return Contestant("ray-serve-llm", _target(port, model), command, {**environment, **ray})


def serve_file_for(
    source: Path, port: int, *, num_threads: int | None, num_replicas: int | None
) -> str:
    """The text of `source` with another port, and the models' threads and replicas if given."""
    document: dict[str, Any] = yaml.safe_load(source.read_text("utf-8"))
    document.setdefault("http_options", {}).update(host=HOST, port=port)
    for application in document["applications"]:
        if application["import_path"] != MODEL_BUILDER:
            continue
        arguments = application["args"]
        if num_threads is not None:
            arguments.setdefault("engine", {})["num_threads"] = num_threads
        if num_replicas is not None:
            arguments["num_replicas"] = num_replicas
    return yaml.safe_dump(document, sort_keys=False)


def _target(port: int, model: str) -> Target:
    url = f"http://{HOST}:{port}"
    return parse_target(url, model=model, api_key=None, allow_remote=False)
