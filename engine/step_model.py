"""One step of a model's layers over the KV pool, whatever computes them.

Must not know requests, slots or sampling.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, IntArray, RaggedBatch
from engine.kv_geometry import KvGeometry
from engine.models.decoder import DecoderModel


class StepModel(Protocol):
    """All layers, or a tensor-parallel rank's part of them, and the KV that they read and write."""

    def forward(self, token_ids: IntArray, batches: Sequence[RaggedBatch]) -> Tensor:
        """Last hidden states [num_tokens, hidden_size] in float32, valid until the next call;
        writes the KV of all tokens to the pool.

        ``token_ids`` is [num_tokens], sequence after sequence as ``batches``, one per KV group,
        have them.
        """
        ...


class TorchStepModel:
    """The decoder in plain torch with one of its attention back ends; the twin of
    `engine.native`."""

    def __init__(
        self,
        model: DecoderModel,
        attention: AttentionBackend,
        geometry: KvGeometry,
        kv_layers: Sequence[Tensor],
        device: torch.device,
    ) -> None:
        self._model = model
        self._attention = attention
        self._kv_layers = kv_layers
        self._device = device
        self._group_of_layer = geometry.group_of_layer

    def forward(self, token_ids: IntArray, batches: Sequence[RaggedBatch]) -> Tensor:
        steps = [self._attention.prepare(batch) for batch in batches]
        return self._model.forward(
            self._to_device(token_ids),
            self._to_device(batches[0].positions()),
            self._kv_layers,
            [steps[group] for group in self._group_of_layer],
        )

    def _to_device(self, values: IntArray) -> Tensor:
        return torch.from_numpy(values).to(self._device)
