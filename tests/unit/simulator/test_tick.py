"""The tick model does what can be followed by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.tick import (
    MAX_DECODES,
    TickAnswer,
    TickEngine,
    TickRequest,
    prefill_tokens_beside,
    run_ticks,
)


def test_a_tick_holds_so_much() -> None:
    assert MAX_DECODES == 58
    assert prefill_tokens_beside(4) == 328
    assert prefill_tokens_beside(0) == 512
    assert prefill_tokens_beside(58) == 4
    with pytest.raises(ValueError, match="0 to 58"):
        prefill_tokens_beside(59)


def test_a_gib_holds_8192_tokens() -> None:
    assert TickEngine(1).capacity_tokens == 8192
    assert TickEngine(0.5).capacity_tokens == 4096


def test_a_prompt_is_prefilled_and_then_decodes_one_token_a_tick() -> None:
    [answer] = run_ticks([TickRequest("a", 1024, 5)], memory_gib=1)
    assert answer == TickAnswer("a", first_token_tick=1, last_token_tick=5, num_evictions=0)


def test_prompts_get_what_decodes_leave() -> None:
    requests = [TickRequest(name, 100, 50) for name in "abcd"]
    late = TickRequest("late", 328 * 3, 1, arrival_tick=1)
    answers = {answer.name: answer for answer in run_ticks([*requests, late], memory_gib=1)}
    assert all(answers[name].first_token_tick == 0 for name in "abcd")
    assert answers["late"].first_token_tick == 3


def test_admission_counts_what_is_written_and_what_is_committed() -> None:
    engine = TickEngine(1)
    for name in "abc":
        engine.add(TickRequest(name, 3000, 10))
    engine.tick(0)
    assert engine.running == ["a", "b"]
    assert (engine.num_written, engine.num_committed) == (512, 5488)
    for now in range(1, 30):
        engine.tick(now)
    assert engine.running == ["c"]


def test_the_one_admitted_last_is_evicted_and_computed_again() -> None:
    # Both prompts fill the memory; the first decode has no room.
    requests = [TickRequest("first", 4000, 200), TickRequest("last", 4192, 3)]
    first, last = run_ticks(requests, memory_gib=1)
    assert (first.name, first.num_evictions) == ("first", 0)
    assert (last.name, last.num_evictions) == ("last", 1)
    assert last.last_token_tick > first.last_token_tick


def test_at_most_58_decode_in_a_tick() -> None:
    requests = [TickRequest(str(index), 1, 20) for index in range(60)]
    answers = run_ticks(requests, memory_gib=1)
    # Two wait for their second token until the first ones have ended.
    assert sorted(a.last_token_tick for a in answers) == [19] * 58 + [38] * 2


def test_what_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="grows to 8193 tokens"):
        run_ticks([TickRequest("a", 8193, 1)], memory_gib=1)
    with pytest.raises(ValueError, match="needs a prompt"):
        run_ticks([TickRequest("a", 0, 1)], memory_gib=1)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 60), st.integers(0, 40)),
        min_size=1,
        max_size=12,
    )
)
def test_everybody_is_answered_within_the_memory(shapes: list[tuple[int, int, int]]) -> None:
    engine = TickEngine(0.05)
    requests = [TickRequest(str(n), *shape) for n, shape in enumerate(shapes)]
    answers: list[TickAnswer] = []
    now = 0
    while engine.has_work or now <= 40:
        for request in requests:
            if request.arrival_tick == now:
                engine.add(request)
        answers += engine.tick(now)
        assert engine.num_written <= engine.capacity_tokens
        now += 1
        assert now < 10_000
    assert sorted(answer.name for answer in answers) == sorted(r.name for r in requests)
    for answer in answers:
        shape = shapes[int(answer.name)]
        assert answer.last_token_tick - answer.first_token_tick >= shape[1] - 1
        assert answer.first_token_tick >= shape[2]
