"""Log probabilities: one per token, in order, whole prompts, nothing lost or repeated."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from cache_tiers.block_image import ImageLayout
from engine.messages import FinishReason, TokenLogprobs
from engine.step import PromptLogprobs, SampledToken, StepPlan, StepResult
from tests.unit.engine.fakes import (
    Answer,
    RecordingRunner,
    answer_alone,
    collect,
    make_config,
    make_engine,
    make_request,
    make_runner,
    run_to_end,
)

PROMPT = list(range(10, 28))


def test_every_token_has_its_log_probabilities_and_others_have_none() -> None:
    engine = make_engine()
    engine.add(make_request("asks", PROMPT, num_logprobs=3, num_samples=2))
    engine.add(make_request("plain", PROMPT))

    answers = run_to_end(engine)

    for name in ("asks", "asks#1"):
        assert len(answers[name].logprobs) == len(answers[name].token_ids) == 4
        for token_id, logprobs in zip(answers[name].token_ids, answers[name].logprobs, strict=True):
            assert logprobs.top_ids[0] == token_id
            assert len(logprobs.top_ids) == len(logprobs.top_logprobs) == 3
    assert answers["plain"].logprobs == []
    assert answers["asks"].prompt_logprobs is None


@pytest.mark.parametrize("budget_tokens", [1, 5, 17, 18, 64])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_prompt_log_probabilities_are_those_of_the_whole_prompt_in_any_chunks(
    budget_tokens: int, max_tokens: int
) -> None:
    request = make_request("a", PROMPT, max_tokens, num_prompt_logprobs=1, num_samples=2)
    alone = answer_alone(request)
    assert alone.prompt_logprobs is not None
    assert [logprobs.top_ids for logprobs in alone.prompt_logprobs] == [[t] for t in PROMPT[1:]]
    config = make_config(max_num_batched_tokens=budget_tokens, min_prefill_chunk_tokens=1)
    runner = RecordingRunner(make_runner(64))
    engine = make_engine(config, runner=runner)
    engine.add(request)

    answers = run_to_end(engine)

    assert answers["a"].prompt_logprobs == alone.prompt_logprobs
    assert answers["a#1"].prompt_logprobs is None
    chunks = [e for plan in runner.plans for e in plan.scheduled if e.start < len(PROMPT)]
    following = [entry.following_token_id for entry in chunks if not entry.is_last_pending]
    ends = [entry.start + entry.num_tokens for entry in chunks if not entry.is_last_pending]
    assert following == [*(PROMPT[end] for end in ends[:-1]), None]


def test_prompt_log_probabilities_are_computed_whole_and_leave_the_prompt_cached() -> None:
    engine = make_engine()
    for name, num_cached in (("first", 0), ("again", 0)):
        engine.add(make_request(name, PROMPT, num_prompt_logprobs=0))
        usage = run_to_end(engine)[name].usage
        assert usage is not None
        assert usage.cached_tokens == num_cached
    engine.add(make_request("plain", PROMPT))
    usage = run_to_end(engine)["plain"].usage
    assert usage is not None
    assert usage.cached_tokens == 16


def test_a_prompt_of_one_token_has_no_log_probabilities_but_a_list() -> None:
    engine = make_engine()
    engine.add(make_request("a", [5], num_prompt_logprobs=2))
    assert run_to_end(engine)["a"].prompt_logprobs == []


def test_a_preempted_prompt_starts_its_log_probabilities_again() -> None:
    config = make_config(max_num_batched_tokens=5, min_prefill_chunk_tokens=1)
    engine = make_engine(config, num_blocks=7)
    engine.add(make_request("old", [7, 8], max_tokens=16))
    answers: dict[str, Answer] = {}
    collect(answers, engine.step().deltas)
    request = make_request("new", PROMPT[:16], num_prompt_logprobs=1, num_logprobs=1)
    engine.add(request)

    run_to_end(engine, answers)

    engine.add(make_request("probe", [1]))
    assert engine.step().load.num_preemptions > 0
    alone = answer_alone(request)
    assert answers["new"].prompt_logprobs == alone.prompt_logprobs
    assert answers["new"].logprobs == alone.logprobs


def test_nothing_of_the_prompt_is_told_when_it_was_not_computed() -> None:
    engine = make_engine(make_config(max_num_batched_tokens=5))
    engine.add(make_request("a", PROMPT, num_prompt_logprobs=1, num_logprobs=1))
    engine.step()
    engine.abort("a")
    answers: dict[str, Answer] = {}
    for output in (engine.step(), engine.step()):
        collect(answers, output.deltas)
    assert answers["a"].finish_reason is FinishReason.ABORT
    assert answers["a"].prompt_logprobs is None


TOP_2 = TokenLogprobs(-1.0, [1, 2], [-1.0, -2.0])


def with_sampled(logprobs: TokenLogprobs | None) -> Callable[[StepResult], StepResult]:
    return lambda result: replace(
        result, sampled=tuple(SampledToken(s.slot, s.token_id, logprobs) for s in result.sampled)
    )


def with_prompt(*chunks: PromptLogprobs) -> Callable[[StepResult], StepResult]:
    return lambda result: replace(result, prompt_logprobs=chunks)


@pytest.mark.parametrize(
    "spoil",
    [
        with_sampled(None),
        with_sampled(TOP_2),
        with_prompt(),
        with_prompt(PromptLogprobs(1, (TOP_2,) * 2)),
        with_prompt(PromptLogprobs(0, (TOP_2,))),
        with_prompt(PromptLogprobs(0, (TOP_2,) * 2)),
    ],
    ids=["none", "too many", "no prompt", "another slot", "too short", "another number"],
)
def test_a_runner_that_answers_other_log_probabilities_fails_the_step(
    spoil: Callable[[StepResult], StepResult],
) -> None:
    class Spoiling:
        def __init__(self) -> None:
            self.inner = make_runner(64)

        def execute(self, plan: StepPlan) -> StepResult:
            return spoil(self.inner.execute(plan))

        def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
            self.inner.take_sampled(sampled)

        def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
            self.inner.attach_arena(arena, layout, socket_path)

        def detach_arena(self) -> None:
            self.inner.detach_arena()

        def close(self) -> None:
            self.inner.close()

    engine = make_engine(runner=Spoiling())
    engine.add(make_request("a", [5, 6, 7], num_logprobs=1, num_prompt_logprobs=1))
    assert run_to_end(engine)["a"].finish_reason is FinishReason.ERROR
    assert engine.num_failed_steps == 1


def test_log_probabilities_that_nobody_asked_for_fail_the_step() -> None:
    class Talkative:
        def execute(self, plan: StepPlan) -> StepResult:
            return with_sampled(TOP_2)(StepResult(plan.step_id, (SampledToken(0, 1),)))

        def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
            pass

        def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
            raise AssertionError("no plan here moves KV")

        def detach_arena(self) -> None:
            raise AssertionError("no plan here moves KV")

        def close(self) -> None:
            pass

    engine = make_engine(runner=Talkative())
    engine.add(make_request("a", [5, 6, 7]))
    assert run_to_end(engine)["a"].finish_reason is FinishReason.ERROR
