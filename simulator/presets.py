"""Hardware by name, for simulations without a profile of one's own.

Step times of the GPUs are medians of what Splitwise published (github.com/Mutinifni/splitwise-sim,
data/perf_model.csv, MIT licence: llama2-70b in 16 bits, 2023), rounded; one prompt or several in a
step count by their tokens, and beyond 64 decodes the last slope goes on. They predate today's
kernels: order and ratios hold better than milliseconds. KV is what 90 % of the memory leaves beside
141 GB of weights and 4 GB of workspace.
``teaching`` and ``tick`` are no measurements at all: see the modules of these names.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

from engine.step_time import StepWork
from simulator import teaching, tick
from simulator.errors import FleetSpecError
from simulator.measured_table import Curve, TableModel
from simulator.performance import NO_TRANSFERS, Bandwidths
from simulator.replica_kind import ReplicaKind

_PROMPTS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_DECODES = (1, 2, 4, 8, 16, 32, 64)
_KV_TOKEN_BYTES = 327_680
"""Keys and values of 8 heads of 128 numbers in 80 layers, 16 bits each."""
_GPU_BYTES = 80_000_000_000
_USABLE_SHARE = 0.9
_WEIGHT_AND_WORKSPACE_BYTES = 145_000_000_000
_TEACHING_KV_BYTES = 16 * 2**30
_TEACHING_STEP_TOKENS = 2048
_TICK_MEMORY_GIB = 16

PRICES: Mapping[str, float] = MappingProxyType({"h100": 4.916, "a100": 1.844})
"""US dollars per GPU and hour."""
PRICE_SOURCE = "AWS EC2 Capacity Blocks, US East, list of late 2024: p5 and p4d"


class TeachingModel:
    """The four formulas as step times: what decoding leaves of a step's time is prefill."""

    @property
    def bandwidths(self) -> Bandwidths:
        return NO_TRANSFERS

    def step_time_s(self, work: StepWork) -> float:
        """Precondition: at most as many decodes as the model holds for."""
        decodes_s = teaching.iteration_ms(work.num_decodes) / 1000 if work.num_decodes else 0.0
        return decodes_s + work.num_prefill_tokens / teaching.PREFILL_TOKENS_PER_S


class TickModel:
    """Units of work as step times: a step takes as many ticks as its units fill."""

    @property
    def bandwidths(self) -> Bandwidths:
        return NO_TRANSFERS

    def step_time_s(self, work: StepWork) -> float:
        """Precondition: at most as many decodes as a tick holds."""
        left = tick.prefill_tokens_beside(work.num_decodes)
        num_units = tick.UNITS_PER_TICK - left + work.num_prefill_tokens
        return tick.TICK_S * max(1, math.ceil(num_units / tick.UNITS_PER_TICK))


def _llama2_70b(
    gpu: str, num_gpus: int, prompts_ms: tuple[float, ...], decodes_ms: tuple[float, ...]
) -> ReplicaKind:
    kv_bytes = int(num_gpus * _GPU_BYTES * _USABLE_SHARE) - _WEIGHT_AND_WORKSPACE_BYTES
    return ReplicaKind(
        label=f"{gpu}-llama2-70b-tp{num_gpus}",
        model=TableModel(_curve(_PROMPTS, prompts_ms), _curve(_DECODES, decodes_ms)),
        num_kv_tokens=kv_bytes // _KV_TOKEN_BYTES,
        kv_token_bytes=_KV_TOKEN_BYTES,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        num_devices=num_gpus,
        max_kv_bytes=kv_bytes,
        settings=(
            ("device", "cuda"),
            ("dtype", "bfloat16"),
            ("quantization", "none"),
            ("tensor_parallel_size", num_gpus),
        ),
    )


def _curve(sizes: tuple[int, ...], times_ms: tuple[float, ...]) -> Curve:
    return Curve(sizes, tuple(time_ms / 1000 for time_ms in times_ms))


_TEACHING = ReplicaKind(
    label="teaching",
    model=TeachingModel(),
    num_kv_tokens=teaching.kv_tokens(_TEACHING_KV_BYTES, "fp16"),
    kv_token_bytes=128 * 1024,
    max_num_seqs=teaching.MAX_BATCH,
    max_num_batched_tokens=_TEACHING_STEP_TOKENS,
)

_TICK = ReplicaKind(
    label="tick",
    model=TickModel(),
    num_kv_tokens=_TICK_MEMORY_GIB * tick.KV_TOKENS_PER_GIB,
    kv_token_bytes=2**30 // tick.KV_TOKENS_PER_GIB,
    max_num_seqs=tick.MAX_DECODES,
    max_num_batched_tokens=tick.UNITS_PER_TICK,
)

TEACHING_PRESETS = (_TEACHING.label, _TICK.label)

_KINDS = (
    _llama2_70b(
        "h100",
        8,
        (51.7, 53.9, 77.7, 134, 376, 832, 1550, 2940),
        (30.3, 30.3, 31.8, 32.5, 34.2, 38.6, 50.2),
    ),
    _llama2_70b(
        "h100",
        4,
        (51.0, 59.7, 105, 200, 457, 925, 1730, 3520),
        (29.5, 29.9, 29.9, 31.4, 32.8, 36.9, 52.4),
    ),
    _llama2_70b(
        "a100",
        8,
        (66.8, 93.0, 161, 283, 708, 1780, 3520, 7550),
        (44.8, 44.8, 45.8, 46.5, 50.4, 53.0, 71.6),
    ),
    _llama2_70b(
        "a100",
        4,
        (78.6, 127, 247, 427, 1070, 2620, 5130, 10950),
        (44.8, 44.8, 45.1, 45.8, 48.5, 52.3, 72.9),
    ),
    _TEACHING,
    _TICK,
)
PRESETS: Mapping[str, ReplicaKind] = MappingProxyType({kind.label: kind for kind in _KINDS})


def find_preset(name: str) -> ReplicaKind:
    """Raises ``FleetSpecError`` for hardware of which nothing is known."""
    try:
        return PRESETS[name]
    except KeyError:
        known = ", ".join(PRESETS)
        raise FleetSpecError(
            f"nothing is known of a GPU {name!r}: choose one of {known}, or measure your own with "
            "`headwater profile` and pass it with --profile"
        ) from None


def price_per_hour(name: str) -> float:
    """Of one device of a preset; 0 where none is known."""
    return PRICES.get(name.partition("-")[0], 0.0)
