"""The sizes and constants of a decoder-only model, whichever family it is of. Imports no torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from engine.kv_geometry import KvGeometry, group_layers
from engine.models.rope import RopeConfig

Activation = Literal["silu", "gelu_tanh"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ from layer to layer."""

    rope: RopeConfig
    window: int | None = None
    """Tokens that a token attends to, itself included; None: all before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything the decoder needs to know beside its weights."""

    architecture: str
    """The family's ``model_type``."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    max_context_len: int
    """Longest context: the above, or more by a scaling of the rotary embedding."""
    layers: tuple[LayerConfig, ...]
    rms_norm_eps: float
    attention_scale: float
    """Factor of the products of queries and keys."""
    activation: Activation = "silu"
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    """Of the projection behind attention."""
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    """Queries and keys are normed head by head before they are turned."""
    has_output_norms: bool = False
    """What attention and MLP add to the residual stream is normed, too."""
    norm_offset: float = 0.0
    """Added to the stored weights of every norm."""
    embedding_scale: float = 1.0
    final_logit_softcap: float | None = None
    has_tied_embeddings: bool = False
    name_prefixes: tuple[str, ...] = ("model.",)
    """What the names of the decoder's tensors may begin with; the first one is canonical."""
    ignored_prefixes: tuple[str, ...] = ()
    """Of tensors that belong to parts which are not run."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def kv_geometry(self, *, block_size_tokens: int, bytes_per_element: int) -> KvGeometry:
        return KvGeometry(
            groups=group_layers([layer.window for layer in self.layers]),
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size_tokens=block_size_tokens,
            bytes_per_element=bytes_per_element,
        )

    def num_parameters(self) -> int:
        """Exact; tied embeddings count once."""
        return sum(math.prod(shape) for _, shape in self.tensor_shapes())

    @property
    def embedding_shape(self) -> Shape:
        return (self.vocab_size, self.hidden_size)

    def tensor_shapes(self) -> Iterator[tuple[str, Shape]]:
        """Name and shape of every tensor of a checkpoint, in Hugging Face's names."""
        prefix = self.name_prefixes[0]
        yield f"{prefix}embed_tokens.weight", self.embedding_shape
        for index in range(self.num_layers):
            for name, shape in self.layer_shapes().items():
                yield f"{prefix}layers.{index}.{name}", shape
        yield f"{prefix}norm.weight", (self.hidden_size,)
        if not self.has_tied_embeddings:
            yield "lm_head.weight", self.embedding_shape

    def layer_shapes(self) -> dict[str, Shape]:
        """The tensors of one layer; all layers have the same."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        linears = {
            "self_attn.q_proj": (q_size, hidden, self.has_qkv_bias),
            "self_attn.k_proj": (kv_size, hidden, self.has_qkv_bias),
            "self_attn.v_proj": (kv_size, hidden, self.has_qkv_bias),
            "self_attn.o_proj": (hidden, q_size, self.has_output_bias),
            "mlp.gate_proj": (inner, hidden, self.has_mlp_bias),
            "mlp.up_proj": (inner, hidden, self.has_mlp_bias),
            "mlp.down_proj": (hidden, inner, self.has_mlp_bias),
        }
        shapes: dict[str, Shape] = {}
        for name, (out_size, in_size, has_bias) in linears.items():
            shapes[f"{name}.weight"] = (out_size, in_size)
            if has_bias:
                shapes[f"{name}.bias"] = (out_size,)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if self.has_output_norms:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        shapes |= {f"{name}.weight": (hidden,) for name in norms}
        if self.has_qk_norm:
            shapes |= {
                f"self_attn.{name}.weight": (self.head_dim,) for name in ("q_norm", "k_norm")
            }
        return shapes
