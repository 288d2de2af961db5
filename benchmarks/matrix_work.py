"""The linear layers of a model alone, with random weights: what a step can't be faster than.

No attention, no norms, no sampling, no bookkeeping. Same layers, same layout, same shapes as the
model's.
"""

import time

import torch
from torch import Tensor

from benchmarks.engine_cases import Case
from engine.layers.linear import Linear, WeightLayout, create_linear
from engine.models.model_config import ModelConfig


class MatrixWork:
    """Every matrix of one model."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        layout: WeightLayout,
        max_num_batched_tokens: int,
    ) -> None:
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        shapes = [(hidden, q_size + 2 * kv_size), (q_size, hidden), (hidden, 2 * inner)]
        shapes.append((inner, hidden))
        self._dtype = dtype
        self._max_num_batched_tokens = max_num_batched_tokens
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

    def measure(self, case: Case) -> float:
        """Tokens per second of a case, if its steps were nothing else."""
        num_tokens, duration_s = 0, 0.0
        for num_in_step, num_sampled in step_shapes(case, self._max_num_batched_tokens):
            num_tokens += num_in_step
            inputs = {
                size: torch.randn(num_in_step, size).to(self._dtype) for size in self._in_sizes
            }
            started_s = time.perf_counter()
            self._run(inputs, num_sampled)
            duration_s += time.perf_counter() - started_s
        return num_tokens / duration_s

    @torch.inference_mode()
    def _run(self, inputs: dict[int, Tensor], num_sampled: int) -> None:
        for in_size, layer in self._layers:
            layer(inputs[in_size])
        if num_sampled:
            self._head(inputs[self._head_in_size][:num_sampled])


def step_shapes(case: Case, max_num_batched_tokens: int) -> list[tuple[int, int]]:
    """Of each step how many tokens it computes, and how many of them get logits."""
    if case.kind == "decode":
        return [(case.num_seqs, case.num_seqs)] * case.num_steps
    is_mixed = case.kind == "mixed"
    num_decodes = case.num_seqs if is_mixed else 0
    prompt_len = case.arriving_len if is_mixed else case.prompt_len
    num_prompt_tokens = prompt_len if is_mixed else case.num_seqs * prompt_len
    budget = max(1, max_num_batched_tokens - num_decodes)
    shapes = []
    for start in range(0, num_prompt_tokens, budget):
        end = min(start + budget, num_prompt_tokens)
        num_ended = end // prompt_len - start // prompt_len
        shapes.append((end - start + num_decodes, num_ended + num_decodes))
    return shapes
