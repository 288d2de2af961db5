"""The engine's section of the configuration. Frozen; unknown keys are errors; units stand in
names."""

from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cache_tiers.config import MAX_LOAD_TIMEOUT_S
from cache_tiers.rung import Rung

MIB = 1024 * 1024


class PacedConfig(BaseModel):
    """A runner that sleeps a profiled step time instead of computing (fleet tests and
    benchmarks)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_base_s: float = Field(default=0.010, ge=0)
    """Time of a step that holds nothing."""
    per_decode_s: float = Field(default=0.0001, ge=0)
    """Added for each sequence that decodes one token."""
    per_prefill_token_s: float = Field(default=0.00002, ge=0)
    """Added for each prompt token computed."""
    per_context_token_s: float = Field(default=0.0, ge=0)
    """Added for each token of the contexts that decodes read."""
    per_attended_token_s: float = Field(default=0.0, ge=0)
    """Added for each token that each prompt token attends to."""
    bucket_tokens: int = Field(default=1, ge=1)
    """A step takes the time of its tokens rounded up to a multiple of this, as on a device with
    captured graphs of some sizes."""
    block_bytes: int = Field(default=64, ge=1)
    """Size of a block's KV on one rank as it leaves for the node's cache, so that as many bytes
    move as with a model of that size; never less than 8 for each token and 8 more."""
    max_step_tokens: int | None = Field(default=None, ge=1)
    """A step of more tokens is out of memory, as on a device that is too small for it."""
    start_s: float = Field(default=0.0, ge=0)
    """Added to the start of each rank, as if it loaded weights; ``start_timeout_s`` counts it."""
    staged_start_s: float | None = Field(default=None, ge=0)
    """The same where the node holds the weights in CPU memory; absent: ``start_s``."""
    wake_s: float = Field(default=0.0, ge=0, le=20)
    """Added to waking, as if memory were allocated; requests and metrics wait meanwhile, as for a
    step."""


class EngineConfig(BaseModel):
    """How one engine replica runs its model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runner: Literal["torch", "paced"] = "torch"
    """``torch`` runs the model; ``paced`` only takes the time of one, see below."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model runs."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of weights, activations and KV."""
    weight_layout: Literal["auto", "mapped", "packed"] = "auto"
    """Where torch runs the layers.
    ``packed``: linear weights are reordered once for the CPU, a private copy, and faster;
    ``mapped``: they stay in the mapped file, which all processes of a node share; ``auto``: packed
    where the CPU can."""
    quantization: Literal["none", "int8", "int4"] = "none"
    """Round linear weights as the model loads, on the CPU: ``int8`` with a scale per output; in
    ``int4`` gate and up, half of a layer's weights, with one per 32 inputs, and the rest in 6 bits
    with one per 64. The compiled step then reads a half or a third of the bytes, which pays where
    few sequences run: decoding the weights costs arithmetic, and at batch 16 all are slower than
    ``none``. Torch computes the same at the memory and speed of ``none``."""
    attention: Literal["auto", "reference", "cpu"] = "auto"
    """``auto`` is the fastest one for the device; ``reference`` is plain torch, for tests."""
    compiled: Literal["auto", "never", "require"] = "auto"
    """``auto``: all layers of a step run in one call of a library that is compiled on first use,
    where device is ``cpu``, dtype ``bfloat16``, ``attention`` and ``weight_layout`` are ``auto``,
    the processor has AVX-512 and the machine a g++; else torch runs them, and a line of the log
    says why. ``require`` refuses to start without."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Ranks that share each layer of the model, all on one node, a process each; on CUDA also a
    device each."""
    num_threads: int = Field(default=1, ge=1)
    """CPU threads of each rank."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens; the model's own when absent. Never more than the model's own, and
    a request is never longer than what the KV pool holds."""
    block_size_tokens: int = Field(default=16, ge=1, le=256)
    """Tokens per KV block, the unit of the prefix cache."""
    kv_cache_bytes: int = Field(default=512 * MIB, ge=1)
    """Memory of the KV pool, all ranks together."""
    max_num_seqs: int = Field(default=64, ge=1, le=4096)
    """Sequences that run at once."""
    max_num_batched_tokens: int = Field(default=512, ge=1)
    """Token budget of one step: decodes first, prefill chunks get the rest."""
    min_prefill_chunk_tokens: int = Field(default=16, ge=1)
    """Prefill gets at least this many tokens a step when any waits, so that it always advances."""
    tpot_target_s: float | None = Field(default=None, gt=0)
    """Longest time per output token that streams shall have. Step size, running sequences and their
    context are then limited to what the measured step times allow, at most to what is configured.
    Without one only ``max_step_stretch`` protects streams: right where throughput counts."""
    max_step_stretch: float | None = Field(default=2.0, gt=1)
    """Without a ``tpot_target_s``: how many times longer than its decodes alone one prompt may make
    a step; each further prompt that waits may add as much. 2 halves the speed of a prompt that
    comes alone while others decode; absent: a step takes whatever fits its token budget."""
    prefix_caching: bool = True
    """Keep the KV of finished requests for prompts that begin alike."""
    kv_admission: Literal["predicted", "worst_case", "optimistic"] = "predicted"
    """When a sequence may start beside others: ``predicted``: when the KV that all are expected to
    grow to fits the pool, from the lengths of earlier answers; ``worst_case``: when they fit with
    all the tokens they may generate, so that nobody is ever preempted for a block; ``optimistic``:
    when its prompt fits."""
    ttft_budget_s: float = Field(default=2.0, gt=0)
    """The engine's own queue holds only what it can start within this time; the rest waits in
    gateways."""
    debug_poison_freed_blocks: bool = False
    """Fill freed KV blocks with NaN: a read of stale KV then shows in the output."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for the step loop's process to load the model and warm up."""
    hand_over_after_s: float = Field(default=10.0, ge=0)
    """A replica that leaves or goes to sleep lets running requests end for so long; other replicas
    of the same weights, if there are any, then go on with them from the tokens so far. Those with
    several answers of which one has begun are waited for."""
    paced: PacedConfig = PacedConfig()
    """Step times of the ``paced`` runner."""

    @model_validator(mode="after")
    def _check_token_budget(self) -> Self:
        if self.min_prefill_chunk_tokens > self.max_num_batched_tokens:
            raise ValueError(
                f"min_prefill_chunk_tokens is {self.min_prefill_chunk_tokens}, more than "
                f"max_num_batched_tokens, {self.max_num_batched_tokens}: no step could hold such a "
                "chunk; lower the one or raise the other"
            )
        return self


class RankSpec(NamedTuple):
    """Which part of the model a process holds."""

    rank: int = 0
    size: int = 1


class EngineSpec(BaseModel):
    """Everything the step loop's process is started with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Name that clients send."""
    checkpoint: Path
    """Folder made by ``engine.checkpoints``."""
    weights_sha256: str | None = None
    """Pinned hash of the weights; a checkpoint with another one is refused."""
    config: EngineConfig = EngineConfig()
    node_cache_socket: Path | None = None
    """Unix socket of the node's cache; without one there are no KV tiers."""
    load_timeout_s: float = Field(default=2.0, gt=0, le=MAX_LOAD_TIMEOUT_S)
    """A prompt waits no longer for the node's cache; what is not there by then is computed."""
    started_from: Rung = Rung.COLD
    """How warm the weights stood on the node when this replica was asked for."""
    forge_socket: Path | None = None
    """Of a process of the node that forks ranks with their imports done; without one, or if it
    doesn't answer, each starts an interpreter of its own."""
