"""Chooses the codes and scales of a weight, tensor by tensor, from the weight alone."""

import torch
from torch import Tensor

from engine.errors import CheckpointError, EngineConfigError
from engine.quantization.weight import CODEBOOKS, GROUP_SIZES, QuantizedWeight, Scheme

_MAX_INT8 = 127
_CHUNK_ELEMENTS = 1 << 22
"""Weights worked on at once: the temporary tensors stay small beside the weight."""
SHARES = (1.0, -127 / 119, 0.92, -0.98, 1.08, -1.15)
"""Scales tried for a group, in units of its largest weight by the codebook's last value: the weight
becomes the last or the first code, or is cut off a little, or left some room."""
_STEPS_PER_UNIT = 8
_NUM_STEPS = 128 * _STEPS_PER_UNIT
_NEAREST = {
    scheme: torch.bucketize(
        torch.arange(-_NUM_STEPS, _NUM_STEPS + 1) / _STEPS_PER_UNIT,
        (codebook[1:] + codebook[:-1]) / 2,
    ).to(torch.uint8)
    for scheme, codebook in CODEBOOKS.items()
}
"""Code nearest to each multiple of 1 / 8 from -128 to 128: finer than the codebooks by far, and
several times as fast as a search in them."""


def quantize(weight: Tensor, scheme: Scheme, importance: Tensor | None = None) -> QuantizedWeight:
    """Round ``weight`` [out_features, in_features], in any floating dtype on the CPU.

    ``importance`` [in_features] weighs squared errors of inputs where the scheme has a choice, as
    their mean square does; by default, or where it isn't finite, all count alike. Output channels
    are rounded independently of each other: parts of a weight along its outputs may be quantized
    alone or together. Raises `EngineConfigError` where ``in_features`` does not suit the scheme,
    `CheckpointError` where the weight holds NaN or infinite values.
    """
    in_features = weight.shape[1]
    if not suits(scheme, in_features):
        others = "'none'" if scheme == "int8" else "'none' or 'int8'"
        raise EngineConfigError(
            f"weights in {scheme} need linear layers whose input size is a multiple of "
            f"{_multiple(scheme)}, but a layer has {in_features}: set quantization to {others}, or "
            "lower tensor_parallel_size if it is more than 1."
        )
    if importance is None or not importance.isfinite().all():
        importance = torch.ones(in_features)
    chunks = weight.split(max(1, _CHUNK_ELEMENTS // in_features))
    rounded = [
        _round_int8(_finite(chunk))
        if scheme == "int8"
        else _round_groups(_finite(chunk), scheme, importance)
        for chunk in chunks
    ]
    return QuantizedWeight(
        scheme,
        codes=torch.cat([codes for codes, _ in rounded]),
        scales=torch.cat([scales for _, scales in rounded]),
    )


def suits(scheme: Scheme, in_features: int) -> bool:
    """Whether weights with so many inputs can be rounded by ``scheme``."""
    return in_features % _multiple(scheme) == 0


def _multiple(scheme: Scheme) -> int:
    return GROUP_SIZES.get(scheme, 2)


def _finite(chunk: Tensor) -> Tensor:
    values = chunk.float()
    if not values.isfinite().all():
        raise CheckpointError(
            "a linear layer's weight holds NaN or infinite values, which cannot be quantized: "
            "fetch the checkpoint again, or set quantization to 'none'."
        )
    return values


def _round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(dim=1) / _MAX_INT8
    codes = (weight / _nonzero(scales).unsqueeze(1)).round_().clamp_(-_MAX_INT8, _MAX_INT8)
    return codes.to(torch.int8), scales


def _round_groups(weight: Tensor, scheme: Scheme, importance: Tensor) -> tuple[Tensor, Tensor]:
    codebook, group_size = CODEBOOKS[scheme], GROUP_SIZES[scheme]
    importance = importance.view(-1, group_size)
    groups = weight.unflatten(1, (-1, group_size))  # [out, groups, group_size]
    largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))
    best_error = torch.full_like(largest, torch.inf)
    best_scales, best_codes = torch.empty_like(largest), torch.empty_like(groups, dtype=torch.uint8)
    for index, share in enumerate(SHARES):
        scales = (largest * (share / codebook[-1].item())).bfloat16().float()
        codes = _nearest_codes(groups / _nonzero(scales), scheme)
        errors = (codebook.take(codes.long()) * scales - groups).square_().mul_(importance)
        error = errors.sum(dim=2, keepdim=True)
        # The first one is taken even if its error is too large for a float, as others then are.
        is_better = error < best_error if index else torch.ones_like(error, dtype=torch.bool)
        best_error = torch.where(is_better, error, best_error)
        best_scales = torch.where(is_better, scales, best_scales)
        best_codes = torch.where(is_better, codes, best_codes)
    return best_codes.flatten(1), best_scales.squeeze(2)


def _nearest_codes(values: Tensor, scheme: Scheme) -> Tensor:
    """uint8, for values in units of the scale."""
    places = (values * _STEPS_PER_UNIT).round_().clamp_(-_NUM_STEPS, _NUM_STEPS)
    return _NEAREST[scheme].take(places.add_(_NUM_STEPS).long())


def _nonzero(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 1.0, scales)
