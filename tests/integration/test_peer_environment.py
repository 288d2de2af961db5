"""Environments of peers are made, kept, and made again when something is wrong; no network."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from benchmarks.peer_environment import PeerEnvironmentError, ensure_environment

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def make_wheel(folder: Path, name: str) -> str:
    """A package of one empty module."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return str(path)


def can_import(python: Path, module: str) -> bool:
    command = [str(python), "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_an_environment_is_made_once_and_anew_if_it_is_half_made_or_another(tmp_path: Path) -> None:
    wanted, unwanted = make_wheel(tmp_path, "wanted"), make_wheel(tmp_path, "unwanted")
    home = tmp_path / "peers"
    python = ensure_environment("peer", [wanted, unwanted], ["unwanted"], home)
    assert python.is_relative_to(home / "peer")
    assert can_import(python, "wanted")
    assert not can_import(python, "unwanted")

    left = home / "peer" / "left"
    left.touch()
    assert ensure_environment("peer", [wanted, unwanted], ["unwanted"], home) == python
    assert left.exists()

    with pytest.raises(PeerEnvironmentError, match=r"exit code 1(.|\n)*nowhere"):
        ensure_environment("peer", [str(tmp_path / "nowhere.whl")], [], home)
    assert not left.exists()

    left.touch()
    ensure_environment("peer", [wanted, unwanted], ["unwanted"], home)
    assert can_import(python, "wanted")
    assert not left.exists()
