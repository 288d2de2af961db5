"""Which rotary embedding a config.json asks for. Imports no torch; `engine.layers.rotary` computes.

transformers 5 writes ``rope_parameters``, earlier versions ``rope_theta`` and ``rope_scaling``;
where both stand, ``rope_scaling`` wins, as it does there. Scalings that are not implemented are
refused by name instead of computed wrongly.
"""

import math
from dataclasses import dataclass

from engine.models.config_reader import MAX_SIZE, ConfigReader


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions count ``factor`` times slower."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """The base grows with the length beyond the original one ("dynamic NTK")."""

    factor: float
    original_len: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """High frequencies stay, low ones slow down (arXiv:2309.00071)."""

    factor: float
    original_len: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    """Of cosines and sines."""
    is_truncated: bool
    """The ends of the ramp are whole dimensions."""


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Wavelengths beyond the original context slow down, with a smooth passage (Llama 3.1)."""

    factor: float
    original_len: int
    low_freq_factor: float
    high_freq_factor: float


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Frequencies of one kind of layer."""

    theta: float
    scaling: LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | None = None

    def max_context_len(self, max_position_embeddings: int) -> int:
        """Longest context these frequencies are meant for.

        Scalings that a user adds to stretch a model leave ``max_position_embeddings`` as it was;
        Llama 3's come with the model, whose length counts them in.
        """
        scaled_len = max_position_embeddings
        match self.scaling:
            case LinearScaling(factor) | DynamicScaling(factor):
                scaled_len = int(max_position_embeddings * factor)
            case YarnScaling(factor, original_len):
                scaled_len = int(original_len * factor)
        return max(max_position_embeddings, min(scaled_len, MAX_SIZE))


def read_rope(config: ConfigReader, *, head_dim: int, default_theta: float = 1e4) -> RopeConfig:
    """The one rotary embedding of all layers."""
    key = "rope_scaling" if config.has("rope_scaling") else "rope_parameters"
    theta = config.number("rope_theta", default_theta, above=1.0)
    return read_rope_section(config, config.section(key), head_dim=head_dim, default_theta=theta)


def read_rope_section(
    config: ConfigReader, rope: ConfigReader, *, head_dim: int, default_theta: float
) -> RopeConfig:
    """The rotary embedding that ``rope``, an object in ``config``, describes."""
    for layer_type in ("full_attention", "sliding_attention"):
        if rope.has_section(layer_type):
            raise rope.error(layer_type, "is not supported for this model: one RoPE is for all")
    for section in (config, rope):
        if section.number("partial_rotary_factor", 1.0) != 1.0:
            raise section.error("partial_rotary_factor", "is not supported; heads turn as a whole")
    theta = rope.number("rope_theta", default_theta, above=1.0)
    kind_key = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.choice(
        kind_key, "default", known=("default", "linear", "dynamic", "yarn", "llama3")
    )
    if kind == "linear":
        return RopeConfig(theta, LinearScaling(rope.number("factor")))
    if kind == "dynamic":
        if head_dim == 2:
            raise rope.error(kind_key, "'dynamic' needs heads of more than 2 dimensions")
        original_len = config.size("max_position_embeddings")
        return RopeConfig(theta, DynamicScaling(rope.number("factor", above=0.999), original_len))
    if kind == "yarn":
        return RopeConfig(theta, _read_yarn(config, rope))
    if kind == "llama3":
        return RopeConfig(theta, _read_llama3(config, rope))
    return RopeConfig(theta)


def _original_len(config: ConfigReader, rope: ConfigReader) -> int:
    for section in (config, rope):
        if section.has("original_max_position_embeddings"):
            return section.size("original_max_position_embeddings")
    return config.size("max_position_embeddings")


def _read_yarn(config: ConfigReader, rope: ConfigReader) -> YarnScaling:
    original_len = _original_len(config, rope)
    factor = rope.number("factor", config.size("max_position_embeddings") / original_len)
    beta_fast = rope.number("beta_fast", 32.0)
    beta_slow = rope.number("beta_slow", 1.0)
    if rope.has("attention_factor"):
        attention_factor = rope.number("attention_factor")
    elif rope.has("mscale") and rope.has("mscale_all_dim"):
        numerator = _yarn_magnitude(factor, rope.number("mscale"))
        attention_factor = numerator / _yarn_magnitude(factor, rope.number("mscale_all_dim"))
    else:
        attention_factor = _yarn_magnitude(factor, 1.0)
    is_truncated = rope.flag("truncate", default=True)
    return YarnScaling(factor, original_len, beta_fast, beta_slow, attention_factor, is_truncated)


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _read_llama3(config: ConfigReader, rope: ConfigReader) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.error("high_freq_factor", f"must be above low_freq_factor, which is {low:g}")
    return Llama3Scaling(rope.number("factor"), _original_len(config, rope), low, high)
