"""Runs a model over the paged pool step by step, without planner and sampler.

What a sequence may not read is NaN: unwritten rows, and blocks that a window has passed, whose
place in the table is empty, too.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.attention import create_attention
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.layers.linear import WeightLayout
from engine.loader import WeightFiles
from engine.models.decoder import DecoderModel
from engine.models.loading import load_model
from engine.models.output_head import OutputHead
from engine.models.registry import read_model_config
from engine.slot_tables import SlotTables
from engine.step import NO_BLOCK, BlockCopy
from engine.step_model import StepModel, TorchStepModel

CPU = torch.device("cpu")
BLOCK_SIZE = 4


class Chunk(NamedTuple):
    """Tokens ``[start, start + num_tokens)`` of one sequence."""

    sequence: int
    start: int
    num_tokens: int


def load_tiny(reference: Any, folder: Path, layout: WeightLayout = "mapped") -> DecoderModel:
    """Our model with the weights of transformers' ``reference``."""
    return load_model(
        read_model_config(reference.config.to_dict()),
        WeightFiles([save_tiny(reference, folder)]),
        dtype=torch.float32,
        device=CPU,
        layout=layout,
    )


def save_tiny(reference: Any, folder: Path) -> Path:
    path = folder / "model.safetensors"
    is_tied = reference.config.tie_word_embeddings
    tensors = {
        name: tensor.contiguous()
        for name, tensor in reference.state_dict().items()
        if not (is_tied and name == "lm_head.weight")
    }
    save_file(tensors, path)
    return path


class PagedSteps:
    """Owner of a pool in which every sequence has its own blocks, shuffled."""

    def __init__(
        self,
        head: OutputHead,
        token_ids: Tensor,
        over: Callable[[KvGeometry, KvPool], StepModel],
        *,
        dtype: torch.dtype,
    ) -> None:
        """``over`` makes the model that computes the layers over the pool."""
        self.head = head
        self.geometry = head.config.kv_geometry(
            block_size_tokens=BLOCK_SIZE, bytes_per_element=dtype.itemsize
        )
        self._token_ids = token_ids  # [num_sequences, len]
        num_sequences, length = token_ids.shape
        num_groups, num_blocks = len(self.geometry.groups), -(-length // BLOCK_SIZE)
        shuffled = np.random.default_rng(0).permutation(num_sequences * num_groups * num_blocks)
        self._blocks = shuffled.reshape(num_sequences, num_groups, num_blocks).tolist()
        self._pool = KvPool(self.geometry, len(shuffled), dtype=dtype, device=CPU)
        self._pool.poison()
        self._step_model = over(self.geometry, self._pool)

    def share_prefix(self, source: int, target: int, num_blocks: int) -> None:
        """``target`` reads the first blocks of ``source``, as after a prefix hit."""
        for own, theirs in zip(self._blocks[target], self._blocks[source], strict=True):
            own[:num_blocks] = theirs[:num_blocks]

    def copy_block(self, source: int, target: int, index: int) -> None:
        """The block of ``source`` is copied for ``target``, as before a write to a shared one."""
        pairs = zip(self._blocks[source], self._blocks[target], strict=True)
        self._pool.copy([BlockCopy(own[index], theirs[index]) for own, theirs in pairs])

    @torch.inference_mode()
    def step(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """Logits of every chunk."""
        logits = self.head.logits(self.forward(chunks))
        return list(logits.split([count for _, _, count in chunks]))

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Last hidden states; what no later token of a chunk can see is forgotten first."""
        for chunk in chunks:
            self._forget_passed(chunk)
        tables = SlotTables(self.geometry, num_slots=len(self._blocks), max_len=256)
        for chunk in chunks:
            tables.admit(chunk.sequence, self._blocks[chunk.sequence])
        slots, starts, counts = (np.array(column) for column in zip(*chunks, strict=True))
        batches = tables.batches(slots, starts, counts)
        spans = [self._token_ids[seq, start : start + count] for seq, start, count in chunks]
        return self._step_model.forward(torch.cat(spans).numpy(), batches)

    def _forget_passed(self, chunk: Chunk) -> None:
        for group, blocks in zip(self.geometry.groups, self._blocks[chunk.sequence], strict=True):
            if group.window is None:
                continue
            for index in range(max(0, chunk.start - group.window + 1) // BLOCK_SIZE):
                if blocks[index] != NO_BLOCK and not self._is_shared(blocks[index]):
                    self._pool.poison([blocks[index]])
                blocks[index] = NO_BLOCK

    def _is_shared(self, block_id: int) -> bool:
        return sum(block_id in table for tables in self._blocks for table in tables) > 1


class PagedModel(PagedSteps):
    """Of the decoder in torch."""

    def __init__(
        self,
        model: DecoderModel,
        token_ids: Tensor,
        *,
        attention: str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        def over(geometry: KvGeometry, pool: KvPool) -> StepModel:
            backend = create_attention(attention, CPU, geometry, scale=model.config.attention_scale)
            return TorchStepModel(model, backend, geometry, pool.layers, CPU)

        super().__init__(model.head, token_ids, over, dtype=dtype)
