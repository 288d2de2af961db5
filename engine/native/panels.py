"""The packed linear layers of a model: which there are, how they are filled from a checkpoint, and
what the compiled step is told of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.loading import LAYER_LINEARS, Head, LinearKind
from engine.models.model_config import Shape
from engine.models.tensor_source import HeldTensor, TensorSource
from engine.native import library
from engine.native.head import PanelHead
from engine.native.pack_file import Bytes, PackedWeights
from engine.native.packing import PanelShape, pack_bias, pack_panels
from engine.native.quantized_packing import pack_quantized_panels
from engine.quantization.layers import Quantization, head_scheme, layer_scheme
from engine.quantization.weight import Scheme

_FORMATS: Mapping[Scheme | None, library.WeightFormat] = {
    None: library.WeightFormat.BF16,
    "int8": library.WeightFormat.INT8,
    "int6": library.WeightFormat.INT6,
    "int4": library.WeightFormat.INT4,
}


@dataclass(frozen=True, slots=True)
class PanelLinear:
    """One layer as the compiled step gets it."""

    fields: library.Linear
    bias: Tensor | None
    """What ``fields`` points to."""
    weights: PackedWeights


@dataclass(frozen=True, slots=True)
class PackedTensors:
    """The tensors of one packed layer."""

    shape: PanelShape
    tensors: Sequence[HeldTensor]


def plan_panels(source: TensorSource, quantization: Quantization) -> dict[str, PackedTensors]:
    """All layers of the rank that ``source`` is of, by the names of their sections."""
    prefix = source.find_prefix()
    shapes = source.config.layer_shapes()
    planned: dict[str, PackedTensors] = {}
    for index in range(source.config.num_layers):
        layer = f"{prefix}layers.{index}."
        for kind, modules in LAYER_LINEARS.items():
            names = [f"{module}.weight" for module in modules]
            tensors = list(source.held(layer, shapes, names))
            scheme = layer_scheme(quantization, kind, tensors[0].held_shape[1])
            planned[layer + kind] = _packed(tensors, scheme, is_interleaved=kind == "gate_up")
    head = source.vocabulary_tensors(prefix)[1]
    scheme = head_scheme(quantization, head.held_shape[1])
    planned[head.name] = _packed([head], scheme, is_interleaved=False)
    return planned


def _packed(
    tensors: Sequence[HeldTensor], scheme: Scheme | None, *, is_interleaved: bool
) -> PackedTensors:
    num_rows = tuple(tensor.held_shape[0] for tensor in tensors)
    shape = PanelShape(tensors[0].held_shape[1], num_rows, is_interleaved, scheme)
    return PackedTensors(shape, tensors)


def section_sizes(planned: Mapping[str, PackedTensors]) -> dict[str, int]:
    """Bytes of all sections of the packed file, in its order."""
    sizes: dict[str, int] = {}
    for name, packed in planned.items():
        sizes[name] = packed.shape.num_bytes
        if packed.shape.num_scales:
            sizes[_scales_of(name)] = packed.shape.num_scales * 4
    return sizes


def _scales_of(name: str) -> str:
    return f"{name} scales"


def pack_all(
    source: TensorSource,
    planned: Mapping[str, PackedTensors],
    importance: Mapping[str, Tensor],
) -> Iterator[tuple[str, Bytes]]:
    """The sections of the packed file, one layer at a time; ``importance`` as
    `engine.models.calibration.measure_importance` has it, of all ranks' inputs."""
    for name, packed in planned.items():
        weights = (source.take(tensor) for tensor in packed.tensors)
        scheme = packed.shape.scheme
        if scheme is None:
            yield name, _bytes(pack_panels(packed.shape, weights))
            continue
        known = importance.get(name)
        own = None if known is None else packed.tensors[0].cut_inputs(known)
        data, scales = pack_quantized_panels(packed.shape, weights, scheme, own)
        yield name, _bytes(data)
        if packed.shape.num_scales:
            yield _scales_of(name), _bytes(scales)


def _bytes(tensor: Tensor) -> Bytes:
    content: Bytes = tensor.view(torch.uint8).flatten().numpy()
    return content


@dataclass(frozen=True, slots=True)
class PanelMaker:
    """Makes a model's linear layers from packed weights; of the checkpoint it takes biases."""

    source: TensorSource
    planned: Mapping[str, PackedTensors]
    weights: PackedWeights
    calls: library.StepLibrary
    num_threads: int
    max_rows: int
    """Rows of logits that are asked for at once, as a rule."""

    def layer(self, prefix: str, shapes: Mapping[str, Shape], kind: LinearKind) -> PanelLinear:
        packed = self.planned[prefix + kind]
        names = [f"{module}.bias" for module in LAYER_LINEARS[kind]]
        held = list(self.source.held(prefix, shapes, names))
        bias = None
        if held:
            bias = pack_bias(packed.shape, (self.source.take(tensor) for tensor in held))
        return self._linear(prefix + kind, bias)

    def head(self, tensor: HeldTensor, table: Tensor) -> Head:
        # The table isn't what a quantized head multiplies, and no other one is at hand.
        is_quantized = self.planned[tensor.name].shape.scheme is not None
        linear = PanelHead(
            self._linear(tensor.name, None).fields,
            self.weights,
            self.calls,
            table=None if is_quantized else table,
            num_threads=self.num_threads,
            max_rows=self.max_rows,
        )
        return Head(linear, table, is_exact=True if is_quantized else None, greedy=linear)

    def _linear(self, name: str, bias: Tensor | None) -> PanelLinear:
        packed = self.planned[name]
        for tensor in packed.tensors:
            self.source.weights.skip(tensor.name)
        fields = library.Linear(
            data=self.weights.address(name),
            scales=self.weights.address(_scales_of(name)) if packed.shape.num_scales else None,
            bias=None if bias is None else bias.data_ptr(),
            format=_FORMATS[packed.shape.scheme],
            in_features=packed.shape.in_features,
            out_features=packed.shape.out_features,
        )
        return PanelLinear(fields, bias, self.weights)
