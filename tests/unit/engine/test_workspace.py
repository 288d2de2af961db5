"""The estimate of a step's memory against what torch really allocates."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, EngineSpec
from engine.messages import SamplingParams
from engine.runner import LoadedRunner, create_runner
from engine.step import Admission, ScheduledSequence, StepPlan
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

BUDGET_TOKENS = 192
NUM_SEQS = 32
WIDE: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 256}


def load(folder: Path, model_type: str, **config: Any) -> LoadedRunner:
    checkpoint = write_checkpoint(make_tiny_model(model_type, **WIDE), folder / "checkpoint")
    settings = EngineConfig(
        dtype="float32",
        weight_layout="mapped",
        kv_cache_bytes=2**22,
        max_num_seqs=NUM_SEQS,
        **{"max_num_batched_tokens": BUDGET_TOKENS, **config},
    )
    return create_runner(EngineSpec(model="tiny", checkpoint=checkpoint, config=settings))


def whole_budget_plan(num_groups: int) -> StepPlan:
    """One long chunk, and a short one for every other slot; all sample with every filter on."""
    sampling = SamplingParams(9, temperature=0.7, top_p=0.9, top_k=5, num_logprobs=5)
    lens = [BUDGET_TOKENS - NUM_SEQS + 1] + [1] * (NUM_SEQS - 1)
    blocks_per_seq = -(-lens[0] // 16)
    return StepPlan(
        step_id=1,
        released_slots=(),
        freed_block_ids=(),
        block_copies=(),
        admissions=tuple(
            Admission(
                slot,
                sampling,
                # The first has blocks of its own; the others, of one token each, have one each.
                tuple(
                    tuple(range(blocks_per_seq)) if slot == 0 else (blocks_per_seq + slot,)
                    for _ in range(num_groups)
                ),
                num_prompt_tokens=num_tokens,
            )
            for slot, num_tokens in enumerate(lens)
        ),
        scheduled=tuple(
            ScheduledSequence(slot, 0, (5,) * num_tokens, False, sampling_slots=(slot,))
            for slot, num_tokens in reversed(list(enumerate(lens)))
        ),
    )


def peak_bytes(loaded: LoadedRunner, plan: StepPlan) -> int:
    """Most bytes that were allocated at once during one step."""
    with torch.profiler.profile(profile_memory=True) as profile:
        loaded.runner.execute(plan)
    events = profile.profiler.kineto_results.events()
    allocations = [event for event in events if event.name() == "[memory]"]
    allocations.sort(key=lambda event: event.start_ns())
    held = peak = 0
    for event in allocations:
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("attention", ["reference", "cpu"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_a_step_takes_at_most_the_estimate_and_not_far_less(
    tmp_path: Path, model_type: str, attention: str
) -> None:
    loaded = load(tmp_path, model_type, attention=attention)
    plan = whole_budget_plan(len(loaded.geometry.groups))
    measured = peak_bytes(loaded, plan)
    assert loaded.memory is not None
    assert measured <= loaded.memory.workspace_bytes <= 3 * measured


def test_the_smallest_chunk_counts_where_decodes_use_the_budget_up(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "llama",
        attention="cpu",
        max_num_batched_tokens=BUDGET_TOKENS - NUM_SEQS + 1,
        min_prefill_chunk_tokens=BUDGET_TOKENS - NUM_SEQS + 1,
    )
    measured = peak_bytes(loaded, whole_budget_plan(len(loaded.geometry.groups)))
    assert loaded.memory is not None
    assert measured <= loaded.memory.workspace_bytes <= 3 * measured
