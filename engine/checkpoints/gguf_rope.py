"""Recovers ``rope_parameters`` of Hugging Face's config.json from a GGUF file.

llama.cpp's converter writes linear and YaRN scaling as metadata (``set_gguf_parameters`` in
convert_hf_to_gguf.py), but Llama 3.1's as a tensor of factors by which each frequency is divided
(``rope_freqs.weight``): the formula's parameters are recovered from these and proved by computing
the factors again.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_metadata import count, number, senseless, text

_FACTORS_TENSOR = "rope_freqs.weight"
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""The same in every Llama 3.1, 3.2 and 3.3."""
_TOLERANCE = 1e-3  # relative; the factors are float32, computed by way of float32 frequencies
_MAX_CONTEXT = 2**31 - 1


def rope_parameters(
    file: GgufFile, architecture: str, *, head_dim: int, rope_theta: float
) -> dict[str, Any]:
    """The entry of config.json for all layers that share ``rope_theta``."""
    prefix = f"{architecture}.rope.scaling"
    kind = text(file, f"{prefix}.type") or "none"
    if f"{architecture}.rope.scale_linear" in file.metadata:
        kind, factor_key = "linear", f"{architecture}.rope.scale_linear"  # before 2024
    else:
        factor_key = f"{prefix}.factor"
    if _FACTORS_TENSOR in file.tensors:
        if kind != "none":
            raise _unsupported(file, f"both by {kind[:40]!r} and by factors")
        scaling = _llama3(file, head_dim, rope_theta)
    elif kind == "none":
        scaling = {"rope_type": "default"}
    elif kind == "linear":
        scaling = {"rope_type": "linear", "factor": number(file, factor_key)}
    elif kind == "yarn":
        scaling = _yarn(file, prefix)
    else:
        raise _unsupported(file, f"by {kind[:40]!r}")
    return scaling | {"rope_theta": rope_theta}


def llama3_factors(head_dim: int, rope_theta: float, factor: float) -> NDArray[np.float64]:
    """What divides each of the head_dim / 2 frequencies, by Llama 3.1's formula.

    Wavelengths up to a fourth of the original context stay, those beyond it grow by ``factor``,
    and between the two frequencies are interpolated (Llama 3.1's model card and reference code).
    """
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    context_len = _LLAMA3["original_max_position_embeddings"]
    wavelengths = 2 * math.pi * rope_theta ** (np.arange(0, head_dim, 2) / head_dim)
    kept = np.clip((context_len / wavelengths - low) / (high - low), 0, 1)
    return 1 / ((1 - kept) / factor + kept)


def _llama3(file: GgufFile, head_dim: int, rope_theta: float) -> dict[str, Any]:
    tensor = file.tensors[_FACTORS_TENSOR]
    if tensor.shape != (head_dim // 2,):
        raise CorruptCheckpoint(
            f"{file.path}: {_FACTORS_TENSOR} has shape {tensor.shape} for {head_dim} dimensions "
            "per head. Download the file again."
        )
    factors = file.read(tensor).astype(np.float64)
    if (factors == 1).all():
        return {"rope_type": "default"}
    factor = float(np.float32(factors[-1]))  # of the longest wavelength, beyond every boundary
    # The negated comparison also refuses what isn't a number.
    if not factor > 1 or not np.allclose(
        factors, llama3_factors(head_dim, rope_theta, factor), rtol=_TOLERANCE, atol=0
    ):
        raise _unsupported(file, "by factors that are not those of Llama 3.1")
    return {"rope_type": "llama3", "factor": factor} | _LLAMA3


def _yarn(file: GgufFile, prefix: str) -> dict[str, Any]:
    for key, neutral in (
        ("yarn_ext_factor", 1.0),
        ("attn_factor", 1.0),
        ("yarn_log_multiplier", 0.0),
    ):
        value = file.metadata.get(f"{prefix}.{key}", neutral)
        if type(value) is not float or value != neutral:
            raise _unsupported(file, f"by YaRN with {key}")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": number(file, f"{prefix}.factor"),
        "original_max_position_embeddings": count(
            file, f"{prefix}.original_context_length", at_most=_MAX_CONTEXT
        ),
    }
    for key, name in (
        ("yarn_attn_factor", "attention_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        if f"{prefix}.{key}" in file.metadata:
            scaling[name] = number(file, f"{prefix}.{key}")
    if scaling["factor"] < 1:
        raise senseless(file, f"{prefix}.factor", scaling["factor"])
    return scaling


def _unsupported(file: GgufFile, how: str) -> UnsupportedCheckpoint:
    return UnsupportedCheckpoint(
        f"{file.path} scales its rotary embedding {how}, which cannot be converted. Pull the "
        "model as a safetensors folder instead."
    )
