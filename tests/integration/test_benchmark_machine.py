"""The commit a result names, from real git repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.machine import collect_git_sha

pytestmark = pytest.mark.integration


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_sha_is_marked_when_a_tracked_file_differs(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert collect_git_sha(tmp_path) == "unknown"
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    git(tmp_path, "tag", "-a", "v1", "-m", "a tag must not replace the sha")
    sha = git(tmp_path, "rev-parse", "HEAD")
    assert collect_git_sha(tmp_path) == sha
    (tmp_path / "file").write_text("two")
    assert collect_git_sha(tmp_path) == f"{sha}-dirty"


def test_outside_a_repository_the_sha_is_unknown(tmp_path: Path) -> None:
    assert collect_git_sha(tmp_path / "missing") == "unknown"
