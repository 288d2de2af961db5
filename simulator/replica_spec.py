"""What a simulated replica is made of. Data only."""

from dataclasses import dataclass

from engine.config import EngineConfig
from simulator.errors import FleetSpecError
from simulator.performance import PerformanceModel

DEFAULT_CONFIG = EngineConfig(
    runner="paced", max_num_seqs=256, max_num_batched_tokens=8192, max_step_stretch=None
)
"""As a server of large models is run: throughput first. A limit on the stretch of steps, or a
target for the time per token, is obeyed, too, but each step is then looked at."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One kind of replica."""

    model: PerformanceModel
    num_kv_tokens: int
    """On its accelerator, all ranks together."""
    config: EngineConfig = DEFAULT_CONFIG
    """Of planning: limits, chunks, admission. Blocks are as large as the workload's."""
    host_tokens: int = 0
    """KV that its node's CPU memory holds; 0: there is no such tier."""
    disk_tokens: int = 0
    num_devices: int = 1
    """Accelerators, for the cost."""
    takes_every_step: bool = False
    """Look at each step of a stretch of decodes by itself: slower, and the same results."""

    def __post_init__(self) -> None:
        if self.num_kv_tokens < 1:
            raise FleetSpecError("num_kv_tokens must be at least 1: no request fits a replica")
        if min(self.host_tokens, self.disk_tokens) < 0 or self.num_devices < 1:
            raise FleetSpecError("tiers can't be negative, and a replica has at least one device")
        if self.disk_tokens and not self.host_tokens:
            raise FleetSpecError("what goes to disk comes through host memory: set host_tokens")
        rates = self.model.bandwidths
        if self.host_tokens and not rates.host_tokens_per_s:
            raise FleetSpecError("host_tokens are of no use: bandwidths.host_tokens_per_s is 0")
        if self.disk_tokens and not rates.disk_tokens_per_s:
            raise FleetSpecError("disk_tokens are of no use: bandwidths.disk_tokens_per_s is 0")


@dataclass(frozen=True, slots=True)
class BlockUnits:
    """How blocks of a workload are counted towards routers.

    Routers keep every 8th key of blocks of 16 tokens. A workload with larger blocks has fewer keys:
    routers are then told of blocks small enough that every 8th of theirs is one of its own, so that
    production code counts as it does in production.
    """

    block_size_tokens: int
    """Of the workload, and of the simulated pools."""
    key_stride: int
    """Routers are told of every so manieth key."""
    told_block_tokens: int
    """The size of a block that routers are told."""

    @property
    def told_per_block(self) -> int:
        return self.block_size_tokens // self.told_block_tokens
