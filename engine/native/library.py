"""The compiled library as Python sees it: the structures of ``source/api.h``, its calls and those
of ``source/sampling_api.h``.

Calls release the interpreter's lock. Must not know models or tensors: all memory comes as
addresses, and belongs to the caller.
"""

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

from engine.errors import CompiledStepUnavailable
from engine.native.elf import is_cut_short


class WeightFormat(IntEnum):
    """How the weights of a `Linear` are packed."""

    BF16 = 0
    INT8 = 1
    INT4 = 2
    INT6 = 3


class Activation(IntEnum):
    """Between gate and up."""

    SILU = 0
    GELU_TANH = 1


_Fields = list[tuple[str, Any]]


class Linear(ctypes.Structure):
    """One linear layer with packed weights."""

    _fields_: ClassVar[_Fields] = [
        ("data", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("format", c_int32),
        ("in_features", c_int32),
        ("out_features", c_int32),
    ]


class Layer(ctypes.Structure):
    """One decoder layer."""

    _fields_: ClassVar[_Fields] = [
        ("input_norm", c_void_p),
        ("qkv", Linear),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("output", Linear),
        ("output_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("gate_up", Linear),
        ("down", Linear),
        ("mlp_output_norm", c_void_p),
        ("rotary", c_int32),
        ("kv_group", c_int32),
    ]


class Model(ctypes.Structure):
    """Sizes, constants and layers."""

    _fields_: ClassVar[_Fields] = [
        ("hidden_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("intermediate_size", c_int32),
        ("activation", c_int32),
        ("num_layers", c_int32),
        ("norm_eps", c_float),
        ("attention_scale", c_float),
        ("layers", POINTER(Layer)),
    ]


class Group(ctypes.Structure):
    """One KV group of a step."""

    _fields_: ClassVar[_Fields] = [
        ("block_tables", c_void_p),
        ("table_stride", c_int64),
        ("window", c_int64),
    ]


class Step(ctypes.Structure):
    """The sequences of one step, and the memory that it works in."""

    _fields_: ClassVar[_Fields] = [
        ("num_tokens", c_int32),
        ("num_seqs", c_int32),
        ("block_size", c_int32),
        ("starts", c_void_p),
        ("num_new", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("groups", POINTER(Group)),
        ("kv_layers", POINTER(c_void_p)),
        ("x", c_void_p),
        ("scratch", c_void_p),
    ]


class Greedy(ctypes.Structure):
    """Which tokens are chosen while logits are computed; ``wishes`` are sums of
    `engine.layers.greedy_head.RowWish`."""

    _fields_: ClassVar[_Fields] = [
        ("wishes", c_void_p),
        ("table", c_void_p),
        ("largest_norm", c_float),
        ("tokens", c_void_p),
    ]


class PhaseTimes(ctypes.Structure):
    """Nanoseconds per part, added up over calls."""

    _fields_: ClassVar[_Fields] = [
        (name, c_int64)
        for name in (
            "norm",
            "qkv",
            "rotate",
            "attention",
            "output",
            "mlp",
            "down",
            "head",
        )
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "scratch_bytes": (c_int64, [POINTER(Model), c_int32]),
    "run_layers": (None, [POINTER(Model), POINTER(Step), c_int32, c_int32, POINTER(PhaseTimes)]),
    "run_half": (
        None,
        [POINTER(Model), POINTER(Step), c_int32, c_int32, c_void_p, POINTER(PhaseTimes)],
    ),
    "add_half": (
        None,
        [POINTER(Model), POINTER(Step), c_int32, c_int32, c_void_p, POINTER(PhaseTimes)],
    ),
    "logits_scratch_bytes": (c_int64, [POINTER(Linear), c_int32]),
    "compute_logits": (
        None,
        [
            POINTER(Linear),
            c_void_p,
            c_int32,
            c_void_p,
            c_void_p,
            POINTER(Greedy),
            POINTER(PhaseTimes),
        ],
    ),
    "sampling_scratch_bytes": (c_int64, [c_int64]),
    "find_near_largest": (
        None,
        [c_void_p, c_int64, c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_void_p],
    ),
    "draw_tokens": (
        None,
        [c_void_p, c_int64, c_void_p, c_void_p, c_int32, c_void_p, c_void_p],
    ),
    "can_run": (c_int32, []),
    "omp_set_num_threads": (None, [c_int32]),
}


class StepLibrary:
    """One loaded library. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        """Raises `CompiledStepUnavailable` for what is no such library, or does not run here."""
        try:
            if is_cut_short(path.read_bytes()):
                raise CompiledStepUnavailable("the library is cut short")
            self._calls: Any = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                call = getattr(self._calls, name)
                call.restype, call.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise CompiledStepUnavailable(f"the library can't be loaded ({error})") from error
        if not self._calls.can_run():
            raise CompiledStepUnavailable("it was compiled for another processor")
        self.times = PhaseTimes()
        """Of all calls so far."""

    def use_threads(self, num_threads: int) -> None:
        """For calls by this thread, and for its OpenMP regions elsewhere."""
        self._calls.omp_set_num_threads(num_threads)

    def scratch_bytes(self, model: Model, num_tokens: int) -> int:
        return int(self._calls.scratch_bytes(model, num_tokens))

    def run_layers(self, model: Model, step: Step) -> None:
        """All of them."""
        self._calls.run_layers(model, step, 0, model.num_layers, self.times)

    def run_half(self, model: Model, step: Step, layer: int, half: int, partial: int) -> None:
        self._calls.run_half(model, step, layer, half, partial, self.times)

    def add_half(self, model: Model, step: Step, layer: int, half: int, partial: int) -> None:
        self._calls.add_half(model, step, layer, half, partial, self.times)

    def logits_scratch_bytes(self, head: Linear, num_rows: int) -> int:
        return int(self._calls.logits_scratch_bytes(head, num_rows))

    def compute_logits(
        self,
        head: Linear,
        rows: int,
        num_rows: int,
        logits: int,
        scratch: int,
        greedy: Greedy | None = None,
    ) -> None:
        self._calls.compute_logits(head, rows, num_rows, logits, scratch, greedy, self.times)

    def sampling_scratch_bytes(self, vocab_size: int) -> int:
        """For as many threads as the calls below are made with."""
        return int(self._calls.sampling_scratch_bytes(vocab_size))

    def find_near_largest(
        self,
        logits: int,
        vocab_size: int,
        rows: int,
        margins: int,
        num_samples: int,
        max_found: int,
        scratch: int,
        ids: int,
        num_found: int,
    ) -> None:
        self._calls.find_near_largest(
            logits, vocab_size, rows, margins, num_samples, max_found, scratch, ids, num_found
        )

    def draw_tokens(
        self,
        logits: int,
        vocab_size: int,
        rows: int,
        columns: int,
        num_samples: int,
        scratch: int,
        tokens: int,
    ) -> None:
        self._calls.draw_tokens(logits, vocab_size, rows, columns, num_samples, scratch, tokens)
