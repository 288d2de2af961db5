"""What the step loop tells the engine's front for operators: records, notes, totals. Imports no
torch.

Numbers and ids only, never contents.
"""

from typing import Literal

import msgspec

from engine.messages import TimelineEvent

LimitReason = Literal["configured", "tpot_target", "memory", "length"]
"""Why a step may not be larger: ``length``: who waits first would bring too much context."""


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """What one step was, for operators; kept in a ring by the engine's front."""

    step_id: int
    started_s: float
    """Monotonic clock of the node."""
    step_time_s: float
    """Plan, execution and commit."""
    num_prefill_tokens: int
    num_decodes: int
    num_running: int
    """After the step."""
    num_waiting: int
    """Inside the engine, after the step."""
    num_admitted: int
    num_preempted: int
    num_finished: int
    num_used_blocks: int
    """Referenced by sequences, after the step."""
    max_tokens: int
    """Token budget in force."""
    max_seqs: int
    """Sequences that may run, in force."""
    outcome: Literal["ok", "out_of_memory", "failed"] = "ok"
    max_context_tokens: int | None = None
    """Of all that run, in force; None without a limit."""
    limit_reason: LimitReason = "configured"
    """Of the limits in force."""
    num_recomputed_tokens: int = 0
    """Of the prefill tokens, those that had been computed before."""
    num_padding_tokens: int = 0
    """Computed for nobody."""
    num_loads: int = 0
    """Blocks brought from the node's cache."""
    num_stores: int = 0
    """Blocks brought there."""


class RequestNote(msgspec.Struct, frozen=True, array_like=True):
    """Something happened to a request inside the step loop."""

    request_id: str
    event: TimelineEvent


class TierStats(msgspec.Struct, frozen=True, array_like=True):
    """What the KV tiers did; totals are since start. Kinds are those of ``cache_tiers.tier``."""

    is_connected: bool = False
    num_stored_blocks: int = 0
    num_loaded_blocks: dict[str, int] = {}
    """By the kind of tier where they were found."""
    num_failed_blocks: dict[str, int] = {}
    """Images that were not what they should be, by kind."""
    num_dropped_blocks: int = 0
    """That were to be stored, but for want of a slot."""
    num_wanted_blocks: int = 0
    """Now: that wait to be stored."""
    transfer_s: float = 0.0
    """Copying between accelerator and arena, both ways."""
    load_s: float = 0.0
    """Of it, for the prefixes that were restored."""
    fetch_s: float = 0.0
    """What the node took to bring images into the arena."""
    num_fetches: int = 0
    """Prompts that waited for the node."""
    num_timeouts: int = 0
    """Of them, those that it did not answer in time."""
    num_predictions: int = 0
    """Times that the node predicted, of what did not lie in the arena."""
    num_good_predictions: int = 0
    """Off by at most a quarter of what it took."""
    num_checks: int = 0
    """Blocks computed again to compare them with their image."""
    num_differing: int = 0
    num_losses: int = 0
    """How often the node's cache was lost."""


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """What ``LoadView`` does not say; totals are since start."""

    num_steps: int = 0
    busy_time_s: float = 0.0
    """Wall time in steps."""
    num_failed_steps: int = 0
    num_out_of_memory_steps: int = 0
    num_leaked_blocks: int = 0
    """Found with references that no sequence has, and repaired."""
    num_computed_prompt_tokens: int = 0
    """Tokens prefilled, those computed again after a preemption included."""
    num_recomputed_tokens: int = 0
    """Of them, those computed again after a preemption."""
    num_kv_tokens: int = 0
    """Now: tokens that running sequences have KV of, shared ones counted for each."""
    batch_efficiency: float = 1.0
    """Of the tokens of the last steps, the share that somebody needed: neither padding nor computed
    again.
    """
    num_gc_pauses: int = 0
    """Collections of cyclic garbage in the step loop's process, all between steps."""
    gc_pause_s: float = 0.0
    """Wall time in them."""
    longest_gc_pause_s: float = 0.0
    tiers: TierStats | None = None
    """None without tiers."""
    num_moved: int = 0
    """Samples that other replicas were to go on with."""


class MemoryBytes(msgspec.Struct, frozen=True, array_like=True):
    """What the memory of a rank is for."""

    weights: int
    workspace: int
    """Estimated: at most, for the activations and logits of one step."""
    kv_pool: int
    kv_block: int
    kv_token: int
    """In all layers, without windows."""
