"""The memory of the KV pool goes and comes with an engine that sleeps."""

from dataclasses import dataclass

import pytest

from cache_tiers.rung import Rung
from engine.config import MIB
from engine.errors import KvMemoryError
from engine.messages import FinishReason
from engine.sleeper import Sleeper
from tests.unit.engine.fakes import (
    Answer,
    answer_alone,
    collect,
    cut_request,
    make_config,
    make_engine,
    make_request,
    make_runner,
    run_to_end,
)

PROMPT = range(10, 43)


@dataclass
class FakeMemory:
    has_kv: bool = True
    error: KvMemoryError | None = None

    def free_kv(self) -> None:
        self.has_kv = False

    def allocate_kv(self) -> None:
        if self.error is not None:
            raise self.error
        self.has_kv = True


def test_an_engine_sleeps_without_blocks_and_answers_as_before_when_it_woke() -> None:
    runner = make_runner(64)
    engine = make_engine(runner=runner)
    sleeper = Sleeper(engine, runner)
    engine.add(make_request("a", PROMPT, 6))
    before = run_to_end(engine)["a"]
    num_prompt_tokens = engine.load.num_prompt_tokens
    for _ in range(2):
        assert sleeper.sleep().rung is Rung.PARKED
    asleep = engine.step()
    assert asleep.events is not None
    assert len(asleep.events.evicted) == 1  # the eighth block's key
    assert asleep.record is None
    assert (asleep.load.num_free_blocks, asleep.load.num_blocks) == (0, 64)
    assert asleep.load.num_prompt_tokens == num_prompt_tokens
    for _ in range(2):
        change = sleeper.wake()
        assert (change.rung, change.failure) == (Rung.SERVING, None)
    assert engine.load.num_free_blocks == engine.load.num_empty_blocks == 64
    engine.add(make_request("b", PROMPT, 6))
    again = run_to_end(engine)["b"]
    assert again.token_ids == before.token_ids
    assert again.usage is not None
    assert again.usage.cached_tokens == 0


def test_who_comes_to_an_engine_that_sleeps_is_handed_over() -> None:
    runner = make_runner(64)
    engine = make_engine(runner=runner)
    sleeper = Sleeper(engine, runner)
    sleeper.sleep()
    engine.add(make_request("one", PROMPT))
    engine.add(make_request("several", PROMPT, num_samples=3))
    answers = run_to_end(engine)
    assert {answer.finish_reason for answer in answers.values()} == {FinishReason.MOVED}
    assert answers.keys() == {"one", "several", "several#1", "several#2"}
    assert engine.stats.num_moved == 4
    sleeper.wake()
    engine.add(make_request("next", PROMPT))
    assert run_to_end(engine)["next"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("kind", ["machine", "device"])
def test_without_memory_it_stays_asleep_says_why_and_can_try_again(kind: str) -> None:
    memory = FakeMemory()
    available = [500 * MIB, 2000 * MIB] if kind == "machine" else [2000 * MIB] * 2
    engine = make_engine()
    sleeper = Sleeper(engine, memory, num_host_bytes=1000 * MIB, available=lambda: available.pop(0))
    sleeper.sleep()
    if kind == "device":
        memory.error = KvMemoryError("the KV pool finds no memory: CUDA out of memory")
    change = sleeper.wake()
    assert change.rung is Rung.PARKED
    assert change.failure is not None
    assert "\n" not in change.failure
    assert ("needs 1000 MiB and 500 MiB are free" in change.failure) is (kind == "machine")
    assert not memory.has_kv
    assert engine.load.num_free_blocks == 0
    memory.error = None
    assert sleeper.wake().rung is Rung.SERVING
    assert memory.has_kv


def test_those_that_wait_are_handed_over_before_those_that_run() -> None:
    engine = make_engine(make_config(max_num_seqs=2, max_num_batched_tokens=128))
    for name in ("a", "b", "waiting"):
        engine.add(make_request(name, PROMPT, 20))
    several = make_request("several", PROMPT, 20, num_samples=2)
    engine.add(several)
    first = engine.step().deltas
    assert {delta.request_id for delta in first} == {"a", "b"}
    engine.hand_over(only_waiting=True)
    moved = {d.request_id: d for d in engine.step().deltas if d.finish_reason is not None}
    assert moved.keys() == {"waiting", "several"}
    assert {delta.finish_reason for delta in moved.values()} == {FinishReason.MOVED}
    engine.hand_over(only_waiting=False)
    last = [d for d in engine.step().deltas if d.finish_reason is not None]
    assert {delta.request_id for delta in last} == {"a", "b"}
    assert all(d.usage is not None and d.usage.completion_tokens == 2 for d in last)
    assert not engine.has_work
    engine.check_integrity()


def test_what_was_handed_over_goes_on_elsewhere_with_the_tokens_of_one_engine() -> None:
    request = make_request("a", PROMPT, 20, seed=3)
    alone = answer_alone(request)
    engine = make_engine()
    engine.add(request)
    for _ in range(5):
        engine.step()
    engine.hand_over(only_waiting=False)
    [delta] = engine.step().deltas
    assert (delta.finish_reason, delta.token_ids) == (FinishReason.MOVED, [])
    other = make_engine()
    other.add(cut_request(request, alone.token_ids[:5]))
    assert run_to_end(other)["a"].token_ids == alone.token_ids[5:]


def test_several_samples_are_waited_for_once_one_has_begun() -> None:
    engine = make_engine()
    engine.add(make_request("several", PROMPT, 6, num_samples=3))
    answers: dict[str, Answer] = {}
    collect(answers, engine.step().deltas)
    engine.hand_over(only_waiting=False)
    run_to_end(engine, answers)
    assert {answer.finish_reason for answer in answers.values()} == {FinishReason.LENGTH}


def test_one_that_stays_after_all_serves_who_comes() -> None:
    engine = make_engine()
    engine.hand_over(only_waiting=True)
    engine.add(make_request("a", PROMPT))
    engine.stay()
    engine.add(make_request("b", PROMPT))
    answers = run_to_end(engine)
    assert answers["a"].finish_reason is FinishReason.MOVED
    assert answers["b"].finish_reason is FinishReason.LENGTH
