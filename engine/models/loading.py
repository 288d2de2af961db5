"""Makes a decoder from its configuration and the tensors of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.layers.linear import Linear, WeightLayout, create_linear
from engine.layers.norm import RmsNorm
from engine.layers.rotary import RotaryEmbedding
from engine.loader import Weights
from engine.models.decoder import DecoderLayer, DecoderModel, QueryKeyNorms
from engine.models.model_config import ModelConfig, Shape

_REDUNDANT_TENSORS = ("rotary_emb.inv_freq", "lm_head.weight")
"""Some exporters write what can be computed, or the head although it is tied."""


def load_model(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    layout: WeightLayout,
) -> DecoderModel:
    """A tensor stored as ``dtype`` and needed as it is stays mapped, others are converted.

    Raises `CheckpointError` unless the tensors are exactly those of ``config``.
    """
    source = _TensorSource(config, weights, dtype, device, layout)
    prefix = source.find_prefix()
    embedding = source.take(f"{prefix}embed_tokens.weight", config.embedding_shape)
    ropes = list(dict.fromkeys(layer.rope for layer in config.layers))
    shapes = config.layer_shapes()
    layers = [
        source.layer(f"{prefix}layers.{index}.", shapes, rotary=ropes.index(layer.rope))
        for index, layer in enumerate(config.layers)
    ]
    final_norm = source.norm(f"{prefix}norm.weight", (config.hidden_size,))
    head = embedding
    if not config.has_tied_embeddings:
        head = source.take("lm_head.weight", config.embedding_shape)
    weights.check_all_taken(
        ignored_suffixes=_REDUNDANT_TENSORS, ignored_prefixes=config.ignored_prefixes
    )
    return DecoderModel(
        config,
        embedding=embedding,
        rotaries=[
            RotaryEmbedding(rope, head_dim=config.head_dim, dtype=dtype, device=device)
            for rope in ropes
        ],
        layers=layers,
        final_norm=final_norm,
        head=head,
        lm_head=create_linear([head], layout=layout),
    )


@dataclass(frozen=True, slots=True)
class _TensorSource:
    config: ModelConfig
    weights: Weights
    dtype: torch.dtype
    device: torch.device
    layout: WeightLayout

    def find_prefix(self) -> str:
        """The spelling that this checkpoint uses; the canonical one if it uses none."""
        prefixes = self.config.name_prefixes
        known = (prefix for prefix in prefixes if f"{prefix}embed_tokens.weight" in self.weights)
        return next(known, prefixes[0])

    def take(self, name: str, shape: Shape) -> Tensor:
        return self.weights.take(name, shape).to(device=self.device, dtype=self.dtype)

    def norm(self, name: str, shape: Shape) -> RmsNorm:
        return RmsNorm(
            self.take(name, shape),
            eps=self.config.rms_norm_eps,
            offset=self.config.norm_offset,
            dtype=self.dtype,
        )

    def layer(self, prefix: str, shapes: Mapping[str, Shape], *, rotary: int) -> DecoderLayer:
        def norm(name: str) -> RmsNorm:
            return self.norm(f"{prefix}{name}.weight", shapes[f"{name}.weight"])

        def fused(*names: str) -> Linear:
            """One layer of several tensors with the same input."""
            weights, biases = (
                [
                    self.take(f"{prefix}{name}.{kind}", shapes[f"{name}.{kind}"])
                    for name in names
                    if f"{name}.{kind}" in shapes
                ]
                for kind in ("weight", "bias")
            )
            return create_linear(weights, biases or None, layout=self.layout)

        # Gemma calls the norm behind attention what others call the one before the MLP.
        has_output_norms = self.config.has_output_norms
        mlp_norm = "pre_feedforward_layernorm" if has_output_norms else "post_attention_layernorm"
        qk_norms = None
        if self.config.has_qk_norm:
            qk_norms = QueryKeyNorms(norm("self_attn.q_norm"), norm("self_attn.k_norm"))
        return DecoderLayer(
            rotary=rotary,
            input_norm=norm("input_layernorm"),
            qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            qk_norms=qk_norms,
            attention_output=fused("self_attn.o_proj"),
            attention_output_norm=norm("post_attention_layernorm") if has_output_norms else None,
            mlp_norm=norm(mlp_norm),
            gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
            down=fused("mlp.down_proj"),
            mlp_output_norm=norm("post_feedforward_layernorm") if has_output_norms else None,
        )
