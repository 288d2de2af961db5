"""What all tests of the engine share."""

import sys

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """As the engine's: on a busy machine, small operators that wait for a second thread take
    milliseconds. Tests of planning alone don't import torch."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
