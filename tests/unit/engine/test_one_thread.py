import pytest
import torch

from engine.one_thread import one_thread


def fail_on_one_thread() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError


def test_torch_has_one_thread_inside_and_as_many_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError):
            fail_on_one_thread()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
