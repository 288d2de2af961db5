"""The linear layers of a model alone, with random weights: what a step can't be faster than.

No attention, no norms, no sampling, no bookkeeping. Same layers, same layout, same shapes as the
model's.
"""

import torch
from torch import Tensor

from engine.layers.linear import Linear, WeightLayout, create_linear
from engine.models.model_config import ModelConfig


class MatrixWork:
    """Every matrix of one model."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, layout: WeightLayout) -> None:
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        shapes = [(hidden, q_size + 2 * kv_size), (q_size, hidden), (hidden, 2 * inner)]
        shapes.append((inner, hidden))
        self._dtype = dtype
        self._in_sizes = {in_size for in_size, _ in shapes}
        self._head_in_size = hidden
        with torch.inference_mode():
            self._layers: list[tuple[int, Linear]] = []
            for _ in range(config.num_layers):
                for in_size, out_size in shapes:
                    weight = torch.randn(out_size, in_size).to(dtype)
                    self._layers.append((in_size, create_linear([weight], layout=layout)))
            head = torch.randn(config.vocab_size, hidden).to(dtype)
            self._head = create_linear([head], layout=layout)

    def prepare(self, num_tokens: int) -> dict[int, Tensor]:
        """Inputs of a step of ``num_tokens``, by their width."""
        return {size: torch.randn(num_tokens, size).to(self._dtype) for size in self._in_sizes}

    @torch.inference_mode()
    def run(self, inputs: dict[int, Tensor], num_sampled: int) -> None:
        """The matrix products of one step, of which ``num_sampled`` tokens get logits."""
        for in_size, layer in self._layers:
            layer(inputs[in_size])
        if num_sampled:
            self._head(inputs[self._head_in_size][:num_sampled])
