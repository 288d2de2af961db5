"""The Llama family: RMSNorm, RoPE, grouped-query attention, SwiGLU, tied or untied embeddings.

Tokens of all sequences lie in one flat dimension, without padding; only attention knows where a
sequence begins, and it comes as an argument. Sizes are checked when the weights are loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from engine.attention.base import StepAttention
from engine.layers.linear import Linear, WeightLayout, create_linear
from engine.layers.rotary import RotaryTable, rotate_
from engine.loader import WeightFiles
from engine.models.llama_config import LlamaConfig

_REDUNDANT_TENSORS = ("rotary_emb.inv_freq", "lm_head.weight")
"""Some exporters write what can be computed, or the head although it is tied."""


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Weights of one decoder layer."""

    input_norm: Tensor
    qkv: Linear
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Token ids to logits."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        embedding: Tensor,
        layers: Sequence[LlamaLayer],
        final_norm: Tensor,
        head: Tensor,
        lm_head: Linear,
        rotary: RotaryTable,
    ) -> None:
        self.config = config
        self._eps = config.rms_norm_eps
        self._embedding = embedding
        self._layers = tuple(layers)
        self._final_norm = final_norm
        self._head = head
        self._lm_head = lm_head
        self._rotary = rotary

    @classmethod
    def load(
        cls,
        config: LlamaConfig,
        files: WeightFiles,
        *,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
        layout: WeightLayout,
    ) -> Self:
        """Build from a checkpoint. A tensor stored as ``dtype`` and needed as it is stays
        mapped."""
        tensors = _TensorSource(config, files, dtype, device, layout)
        hidden = config.hidden_size
        embedding = tensors.take("model.embed_tokens.weight", config.vocab_size, hidden)
        layers = [tensors.layer(index) for index in range(config.num_layers)]
        final_norm = tensors.norm("model.norm.weight", hidden)
        if config.has_tied_embeddings:
            head = embedding
        else:
            head = tensors.take("lm_head.weight", config.vocab_size, hidden)
        files.check_all_taken(ignored=_REDUNDANT_TENSORS)
        rotary = RotaryTable(
            head_dim=config.head_dim,
            max_len=max_len,
            theta=config.rope_theta,
            dtype=dtype,
            device=device,
        )
        return cls(
            config,
            embedding=embedding,
            layers=layers,
            final_norm=final_norm,
            head=head,
            lm_head=create_linear([head], layout=layout),
            rotary=rotary,
        )

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_layers: Sequence[Tensor],
        attend: StepAttention,
    ) -> Tensor:
        """Last hidden states [num_tokens, hidden_size] in float32; writes the KV of all tokens to
        ``kv_layers``.

        ``token_ids`` and ``positions`` are [num_tokens], sequence after sequence as ``attend`` has
        them. The residual stream is float32 whatever the weights are: in bfloat16 the sum of each
        layer would round away what the next ones need.
        """
        config = self.config
        norm = self._norm
        cos, sin = self._rotary.at(positions)
        num_rotated = config.num_heads + config.num_kv_heads
        heads_shape = (len(token_ids), num_rotated + config.num_kv_heads, config.head_dim)
        kv_shape = (len(token_ids), 2, config.num_kv_heads, config.head_dim)
        x = F.embedding(token_ids, self._embedding).float()  # [num_tokens, hidden_size]
        for layer, kv in zip(self._layers, kv_layers, strict=True):
            heads = layer.qkv(norm(x, layer.input_norm)).view(heads_shape)
            rotate_(heads[:, :num_rotated], cos, sin)
            attended = attend(
                heads[:, : config.num_heads],
                heads[:, config.num_heads :].view(kv_shape),
                kv,
            )
            x += layer.attention_output(attended)
            gate, up = layer.gate_up(norm(x, layer.mlp_norm)).chunk(2, dim=-1)
            x += layer.down(F.silu(gate).mul_(up))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[num_rows, vocab_size] for the rows of last hidden states given, in the weights' dtype.

        bfloat16 has a step of 1/8 at a logit of 25: the likeliest tokens often tie.
        """
        return self._lm_head(self._norm(hidden, self._final_norm))

    def exact_logits(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """Logits in float32 of a few tokens per row: ``token_ids`` is [num_rows, num_tokens]."""
        normed = F.rms_norm(hidden, self._final_norm.shape, self._final_norm, self._eps)
        return (self._head[token_ids].float() @ normed.unsqueeze(-1)).squeeze(-1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps).to(self._embedding.dtype)


@dataclass(frozen=True, slots=True)
class _TensorSource:
    """Names and shapes of Hugging Face's Llama checkpoints."""

    config: LlamaConfig
    files: WeightFiles
    dtype: torch.dtype
    device: torch.device
    layout: WeightLayout

    def take(self, name: str, *shape: int) -> Tensor:
        return self.files.take(name, shape).to(device=self.device, dtype=self.dtype)

    def norm(self, name: str, size: int) -> Tensor:
        """In float32, as the residual stream that it scales."""
        return self.take(name, size).float()

    def layer(self, index: int) -> LlamaLayer:
        config = self.config
        prefix = f"model.layers.{index}"
        hidden, inner = config.hidden_size, config.intermediate_size
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        attention = self._linears(f"{prefix}.self_attn", has_bias=config.has_attention_bias)
        mlp = self._linears(f"{prefix}.mlp", has_bias=config.has_mlp_bias)
        return LlamaLayer(
            input_norm=self.norm(f"{prefix}.input_layernorm.weight", hidden),
            qkv=attention(hidden, q_proj=q_size, k_proj=kv_size, v_proj=kv_size),
            attention_output=attention(q_size, o_proj=hidden),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=mlp(hidden, gate_proj=inner, up_proj=inner),
            down=mlp(inner, down_proj=hidden),
        )

    def _linears(self, prefix: str, *, has_bias: bool) -> Callable[..., Linear]:
        def fused(in_features: int, **out_features: int) -> Linear:
            names = [(f"{prefix}.{name}", size) for name, size in out_features.items()]
            weights = [self.take(f"{name}.weight", size, in_features) for name, size in names]
            biases = [self.take(f"{name}.bias", size) for name, size in names] if has_bias else None
            return create_linear(weights, biases, layout=self.layout)

        return fused
