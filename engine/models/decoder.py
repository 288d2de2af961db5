"""The decoder of all families: token ids to last hidden states.

Tokens of all sequences lie in one flat dimension, without padding; only attention knows where a
sequence begins, and it comes as an argument. What differs between families is in `ModelConfig`;
`engine.models.loading` makes the layers, whole or one tensor-parallel rank's part of them: here
that shows nowhere but in the numbers of heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from engine.attention.base import StepAttention
from engine.layers.linear import Linear
from engine.layers.norm import RmsNorm
from engine.layers.rotary import RotaryEmbedding, rotate_
from engine.layers.vocabulary import Vocabulary
from engine.models.model_config import ModelConfig
from engine.models.output_head import OutputHead

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class QueryKeyNorms:
    """Norms of every head, over its dimensions."""

    query: RmsNorm
    key: RmsNorm


@dataclass(frozen=True, slots=True)
class DecoderLayer(Generic[L]):
    """Weights of one layer, with linear layers in the form that computes with them."""

    rotary: int
    """Which of the model's rotary embeddings turns the heads."""
    input_norm: RmsNorm
    qkv: L
    qk_norms: QueryKeyNorms | None
    attention_output: L
    attention_output_norm: RmsNorm | None
    mlp_norm: RmsNorm
    gate_up: L
    down: L
    mlp_output_norm: RmsNorm | None


class DecoderModel:
    """One model with its weights, or a rank's part of it. ``config`` has the part's sizes."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        vocabulary: Vocabulary,
        rotaries: Sequence[RotaryEmbedding],
        layers: Sequence[DecoderLayer[Linear]],
        head: OutputHead,
    ) -> None:
        self.config = config
        self.head = head
        self._vocabulary = vocabulary
        self._rotaries = tuple(rotaries)
        self._layers = tuple(layers)
        # Gemma was trained with the scale rounded to the weights' dtype.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=vocabulary.dtype).item()

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_layers: Sequence[Tensor],
        attention: Sequence[StepAttention],
    ) -> Tensor:
        """Last hidden states [num_tokens, hidden_size] in float32; writes the KV of all tokens to
        ``kv_layers``.

        ``token_ids`` and ``positions`` are [num_tokens], sequence after sequence as ``attention``,
        one per layer, has them. The residual stream is float32 whatever the weights are: in
        bfloat16 the sum of each layer would round away what the next ones need.
        """
        rotations = [rotary.at(positions) for rotary in self._rotaries]
        shape = (len(token_ids), self.config.hidden_size)
        x = torch.empty(shape, dtype=torch.float32, device=token_ids.device)
        self._vocabulary.embed_into(token_ids, x)
        if self._embedding_scale != 1.0:
            x *= self._embedding_scale
        for layer, kv, attend in zip(self._layers, kv_layers, attention, strict=True):
            cos, sin = rotations[layer.rotary]
            attended = self._attend(layer, layer.input_norm(x), cos, sin, kv, attend)
            x += _normed(layer.attention_output(attended), layer.attention_output_norm)
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=-1)
            x += _normed(layer.down(self._activate(gate).mul_(up)), layer.mlp_output_norm)
        return x

    def _attend(
        self,
        layer: DecoderLayer[Linear],
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv: Tensor,
        attend: StepAttention,
    ) -> Tensor:
        """[num_tokens, num_heads * head_dim]"""
        num_heads, num_kv_heads = self.config.num_heads, self.config.num_kv_heads
        head_dim = self.config.head_dim
        num_rotated = num_heads + num_kv_heads
        heads = layer.qkv(normed).view(-1, num_rotated + num_kv_heads, head_dim)
        if layer.qk_norms is not None:
            query, key = heads[:, :num_heads], heads[:, num_heads:num_rotated]
            query.copy_(layer.qk_norms.query.exact(query.float()))
            key.copy_(layer.qk_norms.key.exact(key.float()))
        rotate_(heads[:, :num_rotated], cos, sin)
        new_kv = heads[:, num_heads:].view(-1, 2, num_kv_heads, head_dim)
        return attend(heads[:, :num_heads], new_kv, kv)

    def _activate(self, gate: Tensor) -> Tensor:
        if self.config.activation == "silu":
            return F.silu(gate)
        return F.gelu(gate, approximate="tanh")


def _normed(output: Tensor, norm: RmsNorm | None) -> Tensor:
    return output if norm is None else norm.exact(output.float())
