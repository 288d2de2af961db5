import torch

from engine.models.shard import TensorPart
from engine.models.tensor_source import HeldTensor


def test_what_is_known_of_all_inputs_is_cut_as_the_inputs_are() -> None:
    values = torch.arange(6.0)
    parts = [None, TensorPart(0, range(1, 3)), TensorPart(1, range(2, 4))]
    held = [HeldTensor("weight", (4, 6), part) for part in parts]
    assert [tensor.cut_inputs(values).tolist() for tensor in held] == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
        [2, 3],
    ]
    assert all(tensor.cut_inputs(values).numel() == tensor.held_shape[1] for tensor in held)
