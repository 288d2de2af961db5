"""An answer cut anywhere and gone on with on another engine is the one that was not cut."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.messages import EngineRequest, FinishReason, SamplingParams, Usage
from engine.request_limits import RequestLimits
from tests.unit.engine.fakes import (
    BLOCK_SIZE,
    RecordingRunner,
    answer_alone,
    cut_request,
    make_config,
    make_engine,
    make_request,
    make_runner,
    run_to_end,
)

LIMITS = RequestLimits(max_len=32, block_size_tokens=BLOCK_SIZE, vocab_size=50)


@settings(max_examples=80, deadline=None)
@given(
    prompt=st.lists(st.integers(3, 30), min_size=1, max_size=14),
    max_tokens=st.integers(2, 20),
    stop_token_ids=st.sampled_from([(), (11, 12, 13)]),
    seed=st.integers(0, 5),
    num_logprobs=st.none() | st.just(1),
    num_prompt_logprobs=st.none() | st.just(1),
    cut=st.integers(1, 20),
    num_blocks=st.integers(10, 20),
    max_num_batched_tokens=st.integers(1, 32),
    is_cached=st.booleans(),
)
def test_any_cut_leaves_the_answer_and_its_usage_as_they_are(
    prompt: list[int],
    max_tokens: int,
    stop_token_ids: tuple[int, ...],
    seed: int,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None,
    cut: int,
    num_blocks: int,
    max_num_batched_tokens: int,
    is_cached: bool,
) -> None:
    request = make_request(
        "a",
        prompt,
        max_tokens,
        stop_token_ids=stop_token_ids,
        seed=seed,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )
    whole = answer_alone(request)
    if cut >= len(whole.token_ids):
        event("ended before the cut")
        return
    engine = make_engine(
        make_config(max_num_batched_tokens=max_num_batched_tokens), num_blocks=num_blocks
    )
    if is_cached:
        engine.add(make_request("other", [*prompt, *whole.token_ids], 1))
        run_to_end(engine)
    engine.add(make_request("neighbour", [5, 6, 7], 18))
    engine.add(cut_request(request, whole.token_ids[:cut]))

    rest = run_to_end(engine)["a"]

    assert rest.token_ids == whole.token_ids[cut:]
    assert rest.logprobs == whole.logprobs[cut:]
    assert rest.prompt_logprobs is None  # the lost engine's first delta brought them
    assert rest.finish_reason is whole.finish_reason
    assert whole.usage is not None
    assert rest.usage is not None
    assert rest.usage.completion_tokens == whole.usage.completion_tokens
    assert rest.usage.prompt_tokens == len(prompt)
    assert rest.usage.cached_tokens <= len(prompt)
    event(f"preempted: {engine.step().load.num_preemptions > 0}")


def test_the_first_delta_brings_the_next_token_and_the_counts_so_far() -> None:
    request = make_request("a", range(10, 19), 8)
    whole = answer_alone(request)
    engine = make_engine()
    engine.add(cut_request(request, whole.token_ids[:5]))

    [delta] = engine.step().deltas

    assert delta.token_ids == whole.token_ids[5:6]
    assert delta.usage == Usage(9, cached_tokens=0, completion_tokens=6)
    assert engine.step().load.num_generated_tokens == 2


def test_a_stop_string_and_an_abort_count_from_the_beginning_of_the_answer() -> None:
    request = make_request("a", range(10, 19), 12)
    engine = make_engine()
    engine.add(cut_request(request, answer_alone(request).token_ids[:5]))
    for _ in range(3):
        engine.step()

    engine.abort("a", num_kept_tokens=6)

    [delta] = engine.step().deltas
    assert delta.usage == Usage(9, 0, completion_tokens=6, overrun_tokens=2)
    assert delta.finish_reason is FinishReason.STOP


def test_the_runner_is_told_what_a_preempted_sequence_would_tell_it() -> None:
    request = make_request("a", range(10, 16), 8)
    sampling = SamplingParams(8, presence_penalty=0.5, min_tokens=7, stop_token_ids=(2,))
    request = msgspec.structs.replace(request, sampling=sampling)
    runner = RecordingRunner(make_runner(64))
    engine = make_engine(runner=runner)
    engine.add(cut_request(request, [20, 21, 22]))

    engine.step()

    [admission] = runner.plans[0].admissions
    assert admission.num_prompt_tokens == 6
    assert admission.past_token_ids == (*range(10, 16), 20, 21, 22)
    assert admission.sampling == sampling
    [entry] = runner.plans[0].scheduled
    assert (entry.start, entry.num_tokens, entry.is_last_pending) == (0, 9, False)


def test_the_rest_of_the_answer_is_found_in_the_cache_by_what_follows() -> None:
    request = make_request("a", range(10, 16), 9)
    whole = answer_alone(request)
    engine = make_engine()
    engine.add(cut_request(request, whole.token_ids[:4]))
    run_to_end(engine)

    engine.add(make_request("next turn", [*range(10, 16), *whole.token_ids, 5], 1))

    # 15 tokens, the last of which was never computed: three full blocks.
    assert run_to_end(engine)["next turn"].usage == Usage(16, 12, 1)


def resumed(num_generated: int, request: EngineRequest) -> EngineRequest:
    return msgspec.structs.replace(request, num_generated_tokens=num_generated)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (resumed(6, make_request("a", range(10, 16), 9)), "less one for the prompt"),
        (resumed(-1, make_request("a", range(10, 16), 9)), "less one for the prompt"),
        (resumed(2, make_request("a", range(10, 16), 9, num_samples=2)), "only sample"),
        (resumed(3, make_request("a", range(10, 16), 3)), "max_tokens tokens already"),
        (resumed(3, make_request("a", range(10, 16), 0)), "max_tokens tokens already"),
        (
            resumed(3, make_request("a", range(10, 16), 9, stop_token_ids=(14,))),
            "ended with a stop token",
        ),
        (resumed(3, make_request("a", range(10, 42), 9)), "at most 31"),
    ],
)
def test_what_cannot_be_resumed_is_refused(request_: EngineRequest, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        LIMITS.check(request_)


def test_what_can_be_resumed_is_taken_up_to_every_limit() -> None:
    LIMITS.check(resumed(5, make_request("a", range(10, 16), 6)))
    LIMITS.check(resumed(30, make_request("a", range(10, 41), 31)))
    replace(LIMITS, max_len=7).check(
        resumed(2, make_request("a", range(10, 16), 6, stop_token_ids=(10,)))
    )
