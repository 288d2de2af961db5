"""The engine: usage counts, ends of requests, refusals, aborts, timeouts, load and events."""

import pytest

from engine.messages import KEY_STRIDE, FinishReason, Usage
from tests.unit.engine.fakes import (
    BLOCK_SIZE,
    EOS,
    VOCAB_SIZE,
    Answer,
    FakeClock,
    RecordingRunner,
    answer_alone,
    answers_alone,
    collect,
    make_config,
    make_engine,
    make_request,
    make_runner,
    run_to_end,
)


def prompt(num_tokens: int, first: int = 3) -> list[int]:
    return [first, *range(10, 10 + num_tokens - 1)]


def test_a_request_ends_at_max_tokens_with_its_usage() -> None:
    engine = make_engine()
    engine.add(make_request("a", prompt(9), max_tokens=5))

    answer = run_to_end(engine)["a"]

    assert len(answer.token_ids) == 5
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.first_usage == Usage(9, cached_tokens=0, completion_tokens=1)
    assert answer.usage == Usage(9, cached_tokens=0, completion_tokens=5)
    assert answer.error is None


def test_a_stop_token_ends_a_request_and_counts() -> None:
    free_run = answer_alone(make_request("a", prompt(9), max_tokens=8))
    stop = free_run.token_ids[3]
    engine = make_engine()
    engine.add(make_request("a", prompt(9), max_tokens=8, stop_token_ids=(EOS, stop)))

    answer = run_to_end(engine)["a"]

    num_tokens = free_run.token_ids.index(stop) + 1
    assert answer.token_ids == free_run.token_ids[:num_tokens]
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage == Usage(9, cached_tokens=0, completion_tokens=num_tokens)


@pytest.mark.parametrize(("num_blocks", "max_model_len"), [(64, 12), (3, 256)])
def test_the_context_or_the_pool_ends_a_request_by_length(
    num_blocks: int, max_model_len: int
) -> None:
    engine = make_engine(num_blocks=num_blocks, max_model_len=max_model_len)
    engine.add(make_request("a", prompt(9), max_tokens=50))

    answer = run_to_end(engine)["a"]

    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.usage == Usage(9, cached_tokens=0, completion_tokens=3)


@pytest.mark.parametrize(
    ("num_tokens", "num_cached"), [(1, 0), (3, 0), (4, 3), (5, 4), (8, 7), (11, 8), (40, 39)]
)
def test_cached_tokens_are_exact(num_tokens: int, num_cached: int) -> None:
    engine = make_engine()
    request = make_request("first", prompt(num_tokens))
    engine.add(request)
    first = run_to_end(engine)["first"]

    engine.add(make_request("again", prompt(num_tokens)))
    again = run_to_end(engine)["again"]

    assert again.usage == Usage(num_tokens, num_cached, completion_tokens=4)
    assert again.token_ids == first.token_ids == answer_alone(request).token_ids


def test_one_changed_early_token_finds_nothing() -> None:
    engine = make_engine()
    engine.add(make_request("first", prompt(40)))
    run_to_end(engine)
    changed = make_request("changed", prompt(40, first=4))
    engine.add(changed)

    answer = run_to_end(engine)["changed"]

    assert answer.usage == Usage(40, cached_tokens=0, completion_tokens=4)
    assert answer.token_ids == answer_alone(changed).token_ids


def test_without_prefix_caching_nothing_is_found_or_announced() -> None:
    engine = make_engine(make_config(prefix_caching=False))
    for name in ("first", "again"):
        engine.add(make_request(name, prompt(BLOCK_SIZE * KEY_STRIDE)))
        while engine.has_work:
            output = engine.step()
            assert output.events is None
        assert output.load.num_cached_prompt_tokens == 0
        assert output.load.num_free_blocks == output.load.num_blocks


@pytest.mark.parametrize(
    ("token_ids", "max_tokens", "words"),
    [
        ([], 4, "prompt is empty"),
        (prompt(32), 4, "at most 31"),
        (prompt(500), 4, "at most 31"),
        (prompt(33), 0, "at most 32"),
        (prompt(5), -1, "at least 0"),
        ([3, VOCAB_SIZE, 4], 4, f"token id {VOCAB_SIZE}"),
        ([3, -1, 4], 4, "token id -1"),
    ],
)
def test_what_never_fits_gets_an_error_and_harms_nobody(
    token_ids: list[int], max_tokens: int, words: str
) -> None:
    engine = make_engine(num_blocks=8)
    engine.add(make_request("good", prompt(6)))
    engine.add(make_request("bad", token_ids, max_tokens))

    answers = run_to_end(engine)

    assert answers["bad"].finish_reason is FinishReason.ERROR
    assert words in str(answers["bad"].error)
    assert answers["bad"].usage == Usage(len(token_ids), cached_tokens=0, completion_tokens=0)
    assert answers["good"].finish_reason is FinishReason.LENGTH


def test_keys_of_another_block_size_are_refused() -> None:
    engine = make_engine()
    request = make_request("a", prompt(9))
    request.block_keys.pop()
    engine.add(request)

    assert "block size" in str(run_to_end(engine)["a"].error)


def test_a_used_request_id_is_refused_without_harm_to_the_old_one() -> None:
    engine = make_engine()
    old = make_request("a", prompt(9), max_tokens=6)
    engine.add(old)
    first = engine.step().deltas
    engine.add(make_request("a", prompt(20), max_tokens=2))

    refusal, *later = engine.step().deltas

    assert refusal.finish_reason is FinishReason.ERROR
    assert "already running" in str(refusal.error)
    answers: dict[str, Answer] = {}
    collect(answers, first + later)
    run_to_end(engine, answers)
    assert answers["a"].token_ids == answer_alone(old).token_ids


def test_an_abort_ends_a_request_with_the_next_step_alone() -> None:
    engine = make_engine()
    engine.add(make_request("a", prompt(9), max_tokens=50))
    for _ in range(3):
        engine.step()

    engine.abort("a")

    engine.check_integrity()
    assert engine.has_work
    [delta] = engine.step().deltas
    assert (delta.token_ids, delta.finish_reason) == ([], FinishReason.ABORT)
    assert delta.usage == Usage(9, cached_tokens=0, completion_tokens=3)
    assert not engine.has_work


@pytest.mark.parametrize(("num_kept", "completion", "overrun"), [(2, 2, 3), (5, 5, 0), (9, 5, 0)])
def test_a_stop_string_ends_with_stop_and_the_rest_is_overrun(
    num_kept: int, completion: int, overrun: int
) -> None:
    engine = make_engine()
    engine.add(make_request("a", prompt(9), max_tokens=50))
    for _ in range(5):
        engine.step()

    engine.abort("a", num_kept_tokens=num_kept)

    [delta] = engine.step().deltas
    assert delta.finish_reason is FinishReason.STOP
    assert delta.usage == Usage(9, 0, completion, overrun)


def test_one_sample_can_be_aborted_and_the_others_go_on() -> None:
    engine = make_engine()
    engine.add(make_request("a", prompt(9), max_tokens=5, num_samples=3))
    answers: dict[str, Answer] = {}
    collect(answers, engine.step().deltas)

    engine.abort("a", num_kept_tokens=1, index=1)
    engine.abort("a", index=7)

    run_to_end(engine, answers)
    assert [answers[name].finish_reason for name in ("a", "a#1", "a#2")] == [
        FinishReason.LENGTH,
        FinishReason.STOP,
        FinishReason.LENGTH,
    ]
    assert [len(answers[name].token_ids) for name in ("a", "a#1", "a#2")] == [5, 1, 5]


def test_an_abort_and_a_timeout_end_all_samples_started_or_not() -> None:
    clock = FakeClock()
    engine = make_engine(make_config(max_num_seqs=2), clock=clock)
    for name in ("aborted", "late"):
        engine.add(make_request(name, prompt(9), max_tokens=50, num_samples=3, timeout_s=1.0))
        answers: dict[str, Answer] = {}
        collect(answers, engine.step().deltas)
        assert len(answers) == 2
        if name == "aborted":
            engine.abort(name)
        else:
            clock.now_s = 1.0
        run_to_end(engine, answers)
        reason = FinishReason.ABORT if name == "aborted" else FinishReason.TIMEOUT
        assert [a.finish_reason for a in answers.values()] == [reason] * 3
        assert [len(a.token_ids) for a in answers.values()] == [1, 1, 0]


def test_samples_are_reproduced_whatever_happens_to_them() -> None:
    request = make_request("a", prompt(10), max_tokens=12, num_samples=5, seed=77)
    alone = answers_alone(request)
    assert len({tuple(answer.token_ids) for answer in alone.values()}) == 5
    assert (
        alone["a"].token_ids == answer_alone(make_request("a", prompt(10), 12, seed=77)).token_ids
    )
    engine = make_engine(make_config(max_num_seqs=4), num_blocks=12)
    engine.add(make_request("other", prompt(12, first=5), max_tokens=20))
    engine.add(request)

    answers = run_to_end(engine)

    engine.add(make_request("probe", prompt(2)))
    assert engine.step().load.num_preemptions > 2
    for name, answer in alone.items():
        assert answers[name].token_ids == answer.token_ids


def test_a_prompt_alone_is_cached_and_ends_by_length_with_its_usage() -> None:
    engine = make_engine(make_config(max_num_batched_tokens=8))
    engine.add(make_request("a", prompt(20), max_tokens=0))

    answer = run_to_end(engine)["a"]

    assert (answer.token_ids, answer.finish_reason) == ([], FinishReason.LENGTH)
    assert answer.first_usage == answer.usage == Usage(20, cached_tokens=0, completion_tokens=0)
    engine.add(make_request("again", prompt(20), max_tokens=1))
    assert run_to_end(engine)["again"].usage == Usage(20, 19, 1)


def test_a_request_can_be_aborted_before_it_starts() -> None:
    engine = make_engine(make_config(max_num_seqs=1))
    engine.add(make_request("a", prompt(9)))
    engine.add(make_request("b", prompt(9)))
    answers: dict[str, Answer] = {}
    collect(answers, engine.step().deltas)
    engine.abort("b")

    run_to_end(engine, answers)

    assert answers["b"].usage == Usage(9, cached_tokens=0, completion_tokens=0)
    assert answers["b"].finish_reason is FinishReason.ABORT


def test_aborting_what_is_not_here_is_ignored() -> None:
    engine = make_engine()
    engine.abort("nobody")
    assert not engine.has_work
    engine.add(make_request("a", prompt(9), max_tokens=1))
    run_to_end(engine)
    engine.abort("a")
    assert not engine.has_work


def test_time_runs_out_at_a_step_border_running_or_waiting() -> None:
    clock = FakeClock()
    engine = make_engine(make_config(max_num_seqs=1), clock=clock)
    engine.add(make_request("runs", prompt(9), max_tokens=50, timeout_s=1.0))
    engine.add(make_request("waits", prompt(9), max_tokens=50, timeout_s=1.0))
    engine.add(make_request("stays", prompt(9), max_tokens=2, timeout_s=9.0))
    clock.now_s = 0.99
    [delta] = engine.step().deltas
    assert delta.finish_reason is None
    clock.now_s = 1.0

    answers = run_to_end(engine)

    assert answers["runs"].usage == Usage(9, cached_tokens=0, completion_tokens=1)
    assert answers["runs"].finish_reason is FinishReason.TIMEOUT
    assert answers["waits"].finish_reason is FinishReason.TIMEOUT
    assert answers["stays"].finish_reason is FinishReason.LENGTH


def test_preemption_keeps_answers_and_first_usage() -> None:
    requests = [make_request(f"r{i}", prompt(7, first=i), max_tokens=16) for i in range(3, 7)]
    engine = make_engine(num_blocks=9)
    for request in requests:
        engine.add(request)

    answers = run_to_end(engine)

    engine.add(make_request("probe", prompt(2)))
    assert engine.step().load.num_preemptions > 0
    for request in requests:
        answer, alone = answers[request.request_id], answer_alone(request)
        assert answer.token_ids == alone.token_ids
        assert answer.usage == alone.usage


def test_a_sampled_token_stays_on_the_device_until_a_preemption() -> None:
    runner = RecordingRunner(make_runner(9))
    engine = make_engine(num_blocks=9, runner=runner)
    for i in range(3, 7):
        engine.add(make_request(f"r{i}", prompt(7, first=i), max_tokens=16))
    run_to_end(engine)

    admitted_in_step: dict[int, int] = {}
    for plan in runner.plans:
        admitted_in_step |= {admission.slot: plan.step_id for admission in plan.admissions}
        for entry in plan.scheduled:
            is_new = admitted_in_step[entry.slot] == plan.step_id
            assert entry.is_last_pending == (not is_new)
            assert bool(entry.token_ids) == is_new


def test_the_load_view_counts_and_measures() -> None:
    clock = FakeClock()
    runner = make_runner(64)
    runner._sleep = lambda _: setattr(clock, "now_s", clock.now_s + 0.5)
    engine = make_engine(make_config(max_num_seqs=1), runner=runner, clock=clock)
    idle = engine.step().load
    assert (idle.num_running, idle.step_time_s, idle.prefill_tokens_per_s) == (0, 0.0, 0.0)
    engine.add(make_request("a", prompt(9)))
    engine.add(make_request("b", prompt(9)))

    load = engine.step().load

    assert (load.num_running, load.num_waiting, load.pending_prefill_tokens) == (1, 1, 9)
    assert (load.num_blocks, load.num_free_blocks) == (64, 61)
    assert (load.step_time_s, load.prefill_tokens_per_s) == (0.5, 18.0)
    assert (load.num_prompt_tokens, load.num_generated_tokens) == (9, 1)
    while engine.has_work:
        load = engine.step().load
    assert (load.num_prompt_tokens, load.num_cached_prompt_tokens) == (18, 8)
    assert load.num_generated_tokens == 8
    assert load.num_free_blocks == 64
    assert load.step_time_s == 0.5


def test_events_follow_what_the_cache_gains_and_loses() -> None:
    num_tokens = BLOCK_SIZE * KEY_STRIDE
    engine = make_engine(num_blocks=KEY_STRIDE + 2)
    first = make_request("first", prompt(num_tokens), max_tokens=1)
    engine.add(first)
    events = engine.step().events
    assert events is not None
    assert (events.sequence, events.stored, events.evicted) == (1, [first.block_keys[-1]], [])

    other = make_request("other", prompt(num_tokens, first=4), max_tokens=1)
    engine.add(other)
    events = engine.step().events

    assert events is not None
    assert events.sequence == 2
    assert events.stored == [other.block_keys[-1]]
    assert events.evicted == [first.block_keys[-1]]
