"""All layers of a step in one call of the compiled library; `engine.step_model.TorchStepModel` is
its twin in plain torch.

With several tensor-parallel ranks a call per half layer: between the two all of them add up what
each has computed. Must not know how weights came here, or what the library does with them.
"""

from collections.abc import Sequence

import torch

from engine.attention.base import IntArray, RaggedBatch
from engine.collectives import Collectives
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.layers.norm import RmsNorm
from engine.models.decoder import DecoderLayer
from engine.models.loading import ModelParts
from engine.native import library
from engine.native.panels import PanelLinear
from engine.native.step_inputs import StepInputs
from engine.one_thread import one_thread

_ACTIVATIONS = {"silu": library.Activation.SILU, "gelu_tanh": library.Activation.GELU_TANH}


class NativeModel:
    """A ``StepModel``. Not for several threads at once."""

    def __init__(
        self,
        calls: library.StepLibrary,
        parts: ModelParts[PanelLinear],
        geometry: KvGeometry,
        kv_pool: KvPool,
        *,
        collectives: Collectives | None,
        num_threads: int,
        max_num_seqs: int,
        max_step_tokens: int,
    ) -> None:
        """``max_step_tokens`` is for what memory is reserved; a larger step takes more."""
        self._calls = calls
        self._parts = parts
        self._kv_pool = kv_pool
        self._collectives = collectives
        self._num_threads = num_threads
        config = parts.config
        # Gemma was trained with the scale rounded to the weights' dtype.
        scale = torch.tensor(config.embedding_scale, dtype=parts.vocabulary.dtype)
        self._embedding_scale = scale.item()
        self._layers = (library.Layer * config.num_layers)(
            *map(_layer_fields, parts.layers, geometry.group_of_layer)
        )
        self._model = library.Model(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            activation=_ACTIVATIONS[config.activation],
            num_layers=config.num_layers,
            norm_eps=config.rms_norm_eps,
            attention_scale=config.attention_scale,
            layers=self._layers,
        )
        self._inputs = StepInputs(
            parts.rotaries,
            kv_pool.layers,
            num_groups=len(geometry.groups),
            hidden_size=config.hidden_size,
            head_dim=config.head_dim,
            has_partial=collectives is not None,
            max_num_seqs=max_num_seqs,
        )
        self._reserve(max_step_tokens)

    def forward(self, token_ids: IntArray, batches: Sequence[RaggedBatch]) -> torch.Tensor:
        num_tokens = len(token_ids)
        if num_tokens > self._inputs.max_tokens:
            self._reserve(num_tokens)
        hidden = self._inputs.hidden(num_tokens)
        with one_thread():  # even a long prompt's inputs are little beside its layers
            self._parts.vocabulary.embed_into(torch.from_numpy(token_ids), hidden)
            if self._embedding_scale != 1.0:
                hidden *= self._embedding_scale
            self._inputs.fill(num_tokens, batches)
        self._calls.use_threads(self._num_threads)
        if self._collectives is None:
            self._calls.run_layers(self._model, self._inputs.step)
        else:
            self._run_with_others(num_tokens, self._collectives)
        return hidden

    @property
    def num_reserved_bytes(self) -> int:
        """Of all memory that grows with the largest step."""
        return self._inputs.num_reserved_bytes

    def _run_with_others(self, num_tokens: int, collectives: Collectives) -> None:
        step, partial = self._inputs.step, self._inputs.partial(num_tokens)
        address = partial.data_ptr()
        for layer in range(self._parts.config.num_layers):
            for half in (0, 1):
                self._calls.run_half(self._model, step, layer, half, address)
                collectives.all_reduce_(partial)
                self._calls.add_half(self._model, step, layer, half, address)

    def _reserve(self, num_tokens: int) -> None:
        self._calls.use_threads(self._num_threads)
        scratch_bytes = self._calls.scratch_bytes(self._model, num_tokens)
        self._inputs.reserve(num_tokens, scratch_bytes)


def _layer_fields(layer: DecoderLayer[PanelLinear], kv_group: int) -> library.Layer:
    norms = layer.qk_norms
    return library.Layer(
        input_norm=_address(layer.input_norm),
        qkv=layer.qkv.fields,
        query_norm=_address(None if norms is None else norms.query),
        key_norm=_address(None if norms is None else norms.key),
        output=layer.attention_output.fields,
        output_norm=_address(layer.attention_output_norm),
        mlp_norm=_address(layer.mlp_norm),
        gate_up=layer.gate_up.fields,
        down=layer.down.fields,
        mlp_output_norm=_address(layer.mlp_output_norm),
        rotary=layer.rotary,
        kv_group=kv_group,
    )


def _address(norm: RmsNorm | None) -> int | None:
    return None if norm is None else norm.weight.data_ptr()
