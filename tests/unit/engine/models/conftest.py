import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """As the engine's: two wait for each other on products this small when tests share cores."""
    torch.set_num_threads(1)
