"""Devices that a model can be planned for by name, with the memory that their makers state.

Nominal decimal gigabytes: what a driver reports of the same device differs by a few percent, in
either direction where error correction takes its share.
"""

from typing import NamedTuple

GB = 10**9


class Gpu(NamedTuple):
    memory_bytes: int
    source: str
    """Where the figure stands."""


GPUS = {
    "l4-24gb": Gpu(24 * GB, "NVIDIA L4 datasheet"),
    "a100-40gb": Gpu(40 * GB, "NVIDIA A100 datasheet"),
    "l40s-48gb": Gpu(48 * GB, "NVIDIA L40S datasheet"),
    "a100-80gb": Gpu(80 * GB, "NVIDIA A100 datasheet"),
    "h100-80gb": Gpu(80 * GB, "NVIDIA H100 datasheet"),
    "h200-141gb": Gpu(141 * GB, "NVIDIA H200 datasheet"),
    "b200-180gb": Gpu(180 * GB, "NVIDIA DGX B200 User Guide: 1,440 GB in 8; the chip has 192 GB"),
}
