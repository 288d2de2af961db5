"""Matches a runner's result with the plan that it answers. Pure; changes nothing."""

from collections.abc import Mapping

from engine.errors import RunnerError
from engine.messages import TokenLogprobs
from engine.sequence import Sequence
from engine.step import ScheduledSequence, StepPlan, StepResult


def match_result(
    plan: StepPlan, result: StepResult, sequence_of_slot: Mapping[int, Sequence]
) -> list[Sequence]:
    """The sequences that ``result.sampled`` belongs to, one for one.

    Raises ``RunnerError`` unless ``result`` holds what ``plan`` asks for, in its order.
    """
    asked = [slot for entry in plan.scheduled for slot in entry.sampling_slots]
    if plan.step_id != result.step_id or asked != [s.slot for s in result.sampled]:
        raise RunnerError(
            f"step {plan.step_id} samples slots {asked}, but the runner answered step "
            f"{result.step_id} with {result.sampled}; it must return one token for each, in order"
        )
    sequences = [sequence_of_slot[slot] for slot in asked]
    for sequence, sampled in zip(sequences, result.sampled, strict=True):
        num_top = sequence.sampling.num_logprobs
        if (num_top is not None or sampled.logprobs is not None) and sampled.token_id >= 0:
            _check_logprobs(sampled.slot, num_top, sampled.logprobs)
    _check_prompt_logprobs(plan, result, sequence_of_slot)
    return sequences


def _check_prompt_logprobs(
    plan: StepPlan, result: StepResult, sequence_of_slot: Mapping[int, Sequence]
) -> None:
    is_last_decode = not plan.scheduled or plan.scheduled[-1].is_last_pending
    if is_last_decode and not result.prompt_logprobs:
        return  # decodes come first, so that there is no chunk at all
    chunks = [
        (entry, sampling)
        for entry in plan.scheduled
        if not entry.is_last_pending
        for sampling in [sequence_of_slot[entry.slot].sampling]
        if sampling.num_prompt_logprobs is not None
    ]
    asked = [(entry.slot, _num_predicted(entry)) for entry, _ in chunks]
    answered = [(chunk.slot, len(chunk.logprobs)) for chunk in result.prompt_logprobs]
    if asked != answered:
        raise RunnerError(
            f"step {plan.step_id} asks for prompt log probabilities (slot, number) {asked}, but "
            f"the runner answered {answered}"
        )
    for (_, sampling), chunk in zip(chunks, result.prompt_logprobs, strict=True):
        for logprobs in chunk.logprobs:
            _check_logprobs(chunk.slot, sampling.num_prompt_logprobs, logprobs)


def _num_predicted(entry: ScheduledSequence) -> int:
    """Prompt tokens that a chunk predicts: one after each of its own, if there is one."""
    return len(entry.token_ids) - (entry.following_token_id is None)


def _check_logprobs(slot: int, num_top: int | None, logprobs: TokenLogprobs | None) -> None:
    if num_top is None or logprobs is None:
        raise RunnerError(
            f"slot {slot} asks for log probabilities: {num_top is not None}, "
            f"but it has got some: {logprobs is not None}"
        )
    if not len(logprobs.top_ids) == len(logprobs.top_logprobs) == num_top:
        raise RunnerError(
            f"slot {slot} asks for the {num_top} likeliest tokens, but got "
            f"{len(logprobs.top_ids)} ids and {len(logprobs.top_logprobs)} log probabilities"
        )
