"""The sizes of a Llama-family model, read from a Hugging Face config.json. Imports no torch.

What the model code doesn't implement is refused here, by name, instead of computed wrongly.
"""

from dataclasses import dataclass
from typing import Any, Self

from engine.errors import CheckpointError
from engine.kv_geometry import KvGeometry


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and constants of one model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    has_attention_bias: bool
    has_mlp_bias: bool
    has_tied_embeddings: bool

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> Self:
        """Read config.json's keys; raises `CheckpointError` for what is missing or not
        implemented."""
        _refuse_unknown_kinds(config)
        num_heads = _positive_int(config, "num_attention_heads")
        num_kv_heads = _positive_int(config, "num_key_value_heads", default=num_heads)
        hidden_size = _positive_int(config, "hidden_size")
        if num_heads % num_kv_heads:
            raise CheckpointError(
                f"config.json: {num_heads} attention heads can't share {num_kv_heads} KV heads."
            )
        head_dim = _positive_int(config, "head_dim", default=hidden_size // num_heads)
        if head_dim % 2:
            raise CheckpointError(f"config.json: head_dim {head_dim} is odd, RoPE turns pairs.")
        return cls(
            vocab_size=_positive_int(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_positive_int(config, "intermediate_size"),
            num_layers=_positive_int(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_position_embeddings=_positive_int(config, "max_position_embeddings"),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=_rope_theta(config),
            has_attention_bias=bool(config.get("attention_bias", False)),
            has_mlp_bias=bool(config.get("mlp_bias", False)),
            has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        )

    def kv_geometry(self, *, block_size_tokens: int, bytes_per_element: int) -> KvGeometry:
        return KvGeometry(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size_tokens=block_size_tokens,
            bytes_per_element=bytes_per_element,
        )


def _refuse_unknown_kinds(config: dict[str, Any]) -> None:
    if config.get("model_type") != "llama":
        raise CheckpointError(
            f"config.json: model_type {config.get('model_type')!r} is not supported, only 'llama'."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(
            f"config.json: hidden_act {config['hidden_act']!r} is not supported; only 'silu' is."
        )
    if config.get("quantization_config") is not None:
        raise CheckpointError("config.json: quantized weights are not supported.")


def _rope_theta(config: dict[str, Any]) -> float:
    # transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(
            f"config.json: RoPE scaling {rope_type!r} is not supported; only plain full RoPE is."
        )
    return float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))


def _positive_int(config: dict[str, Any], key: str, *, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"config.json: {key} must be a positive integer, not {value!r}.")
    return value
