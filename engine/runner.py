"""Makes the model runner that the configuration asks for, and says what others must know of it.

torch is imported only for the runner that computes with it, so that a paced replica starts without.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.available_memory import available_memory_bytes
from engine.checkpoints.store import Checkpoint, open_checkpoint
from engine.config import EngineConfig, EngineSpec, RankSpec
from engine.kv_geometry import KvGeometry
from engine.kv_memory import ReplicaRunner
from engine.memory_report import (
    MemoryReport,
    check_device_memory,
    check_memory,
    log_memory,
)
from engine.models.registry import read_model_config
from engine.paced_runner import PacedRunner
from engine.sizing import engine_geometry, estimate_memory, size_engine
from engine.start_stages import StageClock
from engine.step_probe import StepProbe

if TYPE_CHECKING:
    from engine.collectives import Collectives

_ONLY_RANK = RankSpec()


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner ready for its first plan, and the facts of its model."""

    runner: ReplicaRunner
    checkpoint: Checkpoint
    """Tokenizer, chat template and special tokens."""
    geometry: KvGeometry
    num_blocks: int
    """Size of the KV pool."""
    max_model_len: int
    """Context length in tokens, prompt and answer together."""
    vocab_size: int
    memory: MemoryReport | None
    """None for a runner that holds no model."""
    probe: StepProbe
    """Tells whoever listens what the runner is doing."""

    @property
    def weights_revision(self) -> str:
        return self.checkpoint.revision

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.checkpoint.eos_token_ids


def check_start(spec: EngineSpec) -> None:
    """Hold the memory that all ranks need against what is free. Loads nothing.

    Call once per replica, before any of its ranks loads: one that looked later would count what
    the others hold already as taken, and what they need as needed. Raises as `create_runner` does.
    """
    if spec.config.runner == "paced":
        return
    memory = estimate_memory(spec.config, open_checkpoint(spec.checkpoint))
    check_memory(spec.config, memory, available_bytes=available_memory_bytes())


def create_runner(
    spec: EngineSpec,
    rank: RankSpec = _ONLY_RANK,
    collectives: "Collectives | None" = None,
    stages: StageClock | None = None,
) -> LoadedRunner:
    """Open the checkpoint, size the KV pool, load the weights, log what the memory is for.

    Of several ranks each calls this, with ``rank`` and its ``collectives`` (None for a paced
    runner): it loads its part, and its results are empty unless it is rank 0. ``stages`` gets what
    its parts took.

    Raises `CheckpointError` (missing, corrupt, not the pinned weights, unsupported model) or
    `EngineConfigError` (context, device or its memory don't fit), each in one line that says
    what to change. The machine's memory is held against it by `check_start`.
    """
    stages = stages or StageClock()
    checkpoint = open_checkpoint(spec.checkpoint, weights_sha256=spec.weights_sha256)
    config = spec.config
    model_config = read_model_config(checkpoint.config)
    geometry = engine_geometry(config, model_config)
    size = size_engine(config, checkpoint)
    memory = None
    probe = StepProbe(has_torch=config.runner != "paced", device=config.device)
    stages.end("checkpoint")
    runner: ReplicaRunner
    if config.runner == "paced":
        runner = PacedRunner(
            config.paced,
            num_blocks=size.num_blocks,
            block_size_tokens=config.block_size_tokens,
            vocab_size=model_config.vocab_size,
            eos_token_ids=checkpoint.eos_token_ids,
            windows=[group.window for group in geometry.groups],
            rank=rank.rank,
            started_from=spec.started_from,
        )
        stages.end("weights")
    else:
        memory = estimate_memory(config, checkpoint)
        from engine.torch_loading import load_torch_runner

        if config.device == "cuda":
            _check_device(config, memory, rank)
        assert rank.size == 1 or collectives is not None, "ranks must have been joined"
        runner = load_torch_runner(
            config,
            model_config,
            checkpoint,
            num_blocks=size.num_blocks,
            max_request_tokens=size.max_request_tokens,
            collectives=collectives if rank.size > 1 else None,
            probe=probe,
            stages=stages,
        )
        stages.end("workspace")
        log_memory(config, memory, max_model_len=size.max_model_len)
    return LoadedRunner(
        runner=runner,
        checkpoint=checkpoint,
        geometry=geometry,
        num_blocks=size.num_blocks,
        max_model_len=size.max_model_len,
        vocab_size=model_config.vocab_size,
        memory=memory,
        probe=probe,
    )


def _check_device(config: EngineConfig, memory: MemoryReport, rank: RankSpec) -> None:
    """Each rank looks at its own device, which it shares with no other."""
    from engine.device_memory import free_device_bytes

    free_bytes = free_device_bytes(rank.rank)
    if free_bytes is not None:  # else opening it says what is missing
        check_device_memory(config, memory, free_bytes=free_bytes)
