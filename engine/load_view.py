"""What routers are told of an engine's load, read from those who own it."""

import math

import msgspec

from cache_tiers.messages import RecomputeCost
from engine.block_manager import BlockManager
from engine.load_meter import LoadMeter
from engine.messages import LoadView
from engine.scheduler import Scheduler
from engine.step_time import StepTimeModel, StepWork
from engine.tier_desk import TierDesk


def make_load_view(
    scheduler: Scheduler,
    blocks: BlockManager,
    meter: LoadMeter,
    steps: StepTimeModel,
    tiers: TierDesk | None = None,
) -> LoadView:
    """As it is between steps. Who waits for ``tiers`` waits, too."""
    totals = scheduler.totals
    is_fitted = steps.seen >= 1.0
    num_waiting, num_waiting_tokens = scheduler.num_waiting, scheduler.num_waiting_tokens
    if tiers is not None:
        num_waiting += tiers.num_waiting
        num_waiting_tokens += tiers.num_waiting_tokens
    contexts = [s.num_computed_tokens for s in scheduler.running if s.is_last_on_device]
    decodes = StepWork(num_decodes=len(contexts), num_context_tokens=sum(contexts))
    num_prompts = scheduler.num_running - len(contexts) + num_waiting
    return LoadView(
        num_running=scheduler.num_running,
        num_waiting=num_waiting,
        pending_prefill_tokens=num_waiting_tokens + scheduler.num_running_prefill_tokens,
        num_free_blocks=blocks.num_free_blocks,
        num_blocks=blocks.num_blocks,
        prefill_tokens_per_s=meter.prefill_tokens_per_s,
        step_time_s=meter.step_time_s,
        num_preemptions=totals.num_preemptions,
        num_cached_prompt_tokens=totals.num_cached_prompt_tokens,
        num_prompt_tokens=totals.num_prompt_tokens,
        num_generated_tokens=totals.num_generated_tokens,
        num_waiting_tokens=num_waiting_tokens,
        mean_answer_s=meter.mean_answer_s,
        num_empty_blocks=blocks.num_empty_blocks,
        prefill_base_s=steps.base_s if is_fitted else 0.0,
        prefill_token_s=steps.per_prefill_token_s if is_fitted else 0.0,
        prefill_attended_s=steps.per_attended_token_s if is_fitted else 0.0,
        decode_step_s=steps.predict(decodes) if is_fitted else 0.0,
        full_step_tokens=scheduler.limits.prompt_tokens(
            decodes, start=0, num_prompts=max(1, num_prompts)
        ),
    )


def without_pool(load: LoadView) -> LoadView:
    """``load`` of an engine that sleeps: what it knows of its speed, and no block to hand out."""
    return msgspec.structs.replace(load, num_free_blocks=0, num_empty_blocks=0)


def make_recompute_cost(load: LoadView) -> RecomputeCost:
    """What computing a prompt that comes now would take, behind all that are here."""
    queue_s = 0.0
    if load.full_step_tokens > 0:
        num_steps = math.ceil(load.pending_prefill_tokens / load.full_step_tokens)
        queue_s = load.pending_prefill_tokens * load.prefill_token_s
        queue_s += num_steps * load.decode_step_s
    return RecomputeCost(
        step_s=load.decode_step_s,
        step_tokens=load.full_step_tokens,
        token_s=load.prefill_token_s,
        attended_s=load.prefill_attended_s,
        queue_s=queue_s,
    )
