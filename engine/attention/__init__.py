"""Attention back ends behind one protocol (``base``)."""

import torch

from engine.attention.base import AttentionBackend
from engine.attention.cpu import CpuAttention
from engine.attention.reference import ReferenceAttention
from engine.errors import EngineConfigError
from engine.kv_geometry import KvGeometry


def create_attention(
    name: str, device: torch.device, geometry: KvGeometry, *, scale: float
) -> AttentionBackend:
    """The back end called ``name`` in the configuration; ``auto`` is the fastest one for the
    device. ``scale`` is the factor of the products of queries and keys."""
    if name == "auto":
        name = "cpu" if device.type == "cpu" else "reference"
    if name == "cpu":
        if device.type != "cpu":
            raise EngineConfigError(
                f"attention 'cpu' doesn't run on {device.type}; use 'auto' or 'reference'."
            )
        return CpuAttention(geometry, scale)
    return ReferenceAttention(device, scale)
