"""What the engine says of its steps and requests: records, totals, notes on a timeline."""

from dataclasses import dataclass, field

import pytest

from engine.config import PacedConfig
from engine.engine import Engine
from engine.messages import ServiceClass
from engine.step_output import StepOutput
from engine.step_time import StepWork
from tests.unit.engine.fakes import (
    FakeClock,
    make_config,
    make_engine,
    make_request,
    make_runner,
)

STEP_S = 0.5


@dataclass
class Observed:
    """An engine whose steps take half a second each."""

    engine: Engine
    clock: FakeClock
    outputs: list[StepOutput] = field(default_factory=list)

    def step(self) -> StepOutput:
        self.outputs.append(self.engine.step())
        return self.outputs[-1]

    def run_to_end(self) -> None:
        while self.engine.has_work:
            self.step()

    def timeline(self, request_id: str) -> list[tuple[str, float, int]]:
        return [
            (note.event.kind, round(note.event.at_s, 6), note.event.value)
            for output in self.outputs
            for note in output.notes
            if note.request_id == request_id
        ]


def observe(
    *, max_num_seqs: int = 8, max_num_batched_tokens: int = 64, bucket_tokens: int = 1
) -> Observed:
    clock = FakeClock(100.0)
    runner = make_runner(64)
    runner._config = PacedConfig(bucket_tokens=bucket_tokens)
    runner._sleep = lambda _: setattr(clock, "now_s", clock.now_s + STEP_S)
    config = make_config(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    return Observed(make_engine(config, runner=runner, clock=clock), clock)


def test_the_timeline_of_a_request_from_taking_to_freed_blocks() -> None:
    observed = observe(max_num_batched_tokens=8)
    observed.engine.add(make_request("first", range(10, 18), 1))
    observed.run_to_end()
    observed.engine.add(make_request("a", [*range(10, 18), *range(30, 40)], 3, age_s=2.0))
    observed.clock.now_s += 1.0

    observed.run_to_end()

    assert observed.timeline("a") == [
        ("taken", 2.0, 0),
        ("admitted", 3.0, 8),
        ("chunk", 3.5, 8),
        ("chunk", 4.0, 2),
        ("first_token", 4.0, 0),
        ("last_token", 5.0, 3),
        ("blocks_freed", 5.0, 5),
    ]


def test_a_preemption_and_what_follows_stand_in_the_timeline() -> None:
    observed = observe(max_num_seqs=1)
    observed.engine.add(make_request("batch", range(10, 19), 4, service_class=ServiceClass.BATCH))
    observed.step()
    observed.engine.add(
        make_request("urgent", range(20, 23), 1, service_class=ServiceClass.INTERACTIVE)
    )
    observed.run_to_end()

    assert observed.timeline("batch") == [
        ("taken", 0.0, 0),
        ("admitted", 0.0, 0),
        ("chunk", 0.5, 9),
        ("first_token", 0.5, 0),
        ("preempted", 0.5, 3),
        ("admitted", 1.0, 8),
        ("chunk", 1.5, 2),
        ("last_token", 2.5, 4),
        ("blocks_freed", 2.5, 3),
    ]


def test_who_never_started_has_no_blocks_to_free() -> None:
    observed = observe(max_num_seqs=1)
    observed.engine.add(make_request("runs", range(10, 19), 4))
    observed.engine.add(make_request("waits", range(10, 19), 4))
    observed.step()
    observed.engine.abort("waits")
    observed.step()

    assert observed.timeline("waits") == [("taken", 0.0, 0), ("last_token", 0.5, 0)]


def test_steps_of_decodes_alone_make_no_notes() -> None:
    observed = observe()
    for index in range(4):
        observed.engine.add(make_request(f"r{index}", range(10, 19), 30))
    observed.step()

    for _ in range(20):
        assert observed.step().notes == []


def test_a_record_counts_what_its_step_did() -> None:
    observed = observe(max_num_seqs=2, max_num_batched_tokens=16)
    observed.engine.add(make_request("a", range(10, 19), 3))
    observed.engine.add(make_request("b", range(20, 24), 1))
    observed.engine.add(make_request("c", range(30, 34), 1))

    first, second = observed.step().record, observed.step().record

    assert first is not None
    assert second is not None
    assert (first.step_id, first.started_s, first.step_time_s) == (1, 100.0, STEP_S)
    assert (first.num_prefill_tokens, first.num_decodes, first.num_admitted) == (13, 0, 2)
    assert (first.num_running, first.num_waiting, first.num_finished) == (1, 1, 1)
    assert (first.num_used_blocks, first.max_tokens, first.max_seqs) == (3, 16, 2)
    assert (second.num_prefill_tokens, second.num_decodes, second.num_admitted) == (4, 1, 1)
    assert (second.num_running, second.num_waiting, second.num_finished) == (1, 0, 1)
    assert (first.outcome, second.outcome) == ("ok", "ok")
    assert first.num_preempted == second.num_preempted == 0


def test_without_anything_to_compute_there_is_no_record() -> None:
    observed = observe()
    observed.engine.add(make_request("bad", [], 3))

    output = observed.step()

    assert output.record is None
    assert output.stats.num_steps == 0
    assert len(output.deltas) == 1


def test_totals_say_what_was_computed_and_what_is_held() -> None:
    observed = observe(max_num_batched_tokens=8)
    observed.engine.add(make_request("a", range(10, 20), 3))

    assert [observed.step().stats.num_kv_tokens for _ in range(4)] == [8, 10, 11, 0]
    stats = observed.outputs[-1].stats
    assert stats.num_steps == 4
    assert stats.busy_time_s == 4 * STEP_S
    assert stats.num_computed_prompt_tokens == 10


def test_what_is_computed_again_and_padding_lower_the_batch_efficiency() -> None:
    observed = observe(max_num_seqs=1, bucket_tokens=4)
    observed.engine.add(make_request("batch", range(10, 19), 4, service_class=ServiceClass.BATCH))
    assert observed.step().stats.batch_efficiency == pytest.approx(9 / 12)
    observed.engine.add(
        make_request("urgent", range(20, 23), 1, service_class=ServiceClass.INTERACTIVE)
    )
    observed.run_to_end()

    records = [output.record for output in observed.outputs if output.record is not None]
    assert [record.num_padding_tokens for record in records] == [3, 1, 2, 3, 3]
    assert [record.num_recomputed_tokens for record in records] == [0, 0, 1, 0, 0]
    assert records[-1].limit_reason == "configured"


def test_a_failed_step_is_counted_and_recorded() -> None:
    observed = observe()
    observed.engine.add(make_request("a", range(10, 19), 3))
    observed.step()
    observed.engine._runner.close()

    output = observed.step()

    assert output.record is not None
    assert output.record.outcome == "failed"
    assert output.record.num_finished == 1
    assert output.stats.num_failed_steps == 1
    assert observed.timeline("a")[-1] == ("last_token", 0.5, 1)


def test_the_load_tells_how_long_a_step_of_decodes_is_and_what_it_has_room_for() -> None:
    observed = observe(max_num_batched_tokens=64)
    observed.engine.add(make_request("a", range(10, 19), 100))
    load = observed.step().load
    assert (load.decode_step_s, load.full_step_tokens) == (0.0, 63), "nothing is fitted yet"
    steps = observed.engine._step_limits.step_times
    for number in range(60):
        num_prefill, num_decodes = number % 3 * 20, number % 5
        steps.record(StepWork(num_prefill, num_decodes), 0.4 + num_prefill / 100 + num_decodes / 10)

    load = observed.step().load

    # The step just taken, of one decode, took as long as that.
    assert load.decode_step_s == pytest.approx(STEP_S, rel=0.02)
    assert load.prefill_token_s == pytest.approx(0.01, rel=0.02)


def test_the_load_tells_what_waits_and_how_long_an_answer_takes() -> None:
    observed = observe(max_num_seqs=1)
    observed.engine.add(make_request("a", range(10, 18), 4))
    assert observed.step().load.mean_answer_s == 0.0
    observed.engine.add(make_request("b", range(10, 30), 4))
    observed.engine.add(make_request("c", range(30, 37), 4, num_samples=3))

    load = observed.step().load

    assert load.num_waiting_tokens == 12 + 7  # of b 8 are cached, of c one sample computes for all
    assert load.pending_prefill_tokens == load.num_waiting_tokens
    observed.run_to_end()
    assert observed.outputs[-1].load.mean_answer_s == pytest.approx(4 * STEP_S)
    assert observed.outputs[-1].load.num_waiting_tokens == 0


def test_forgetting_starts_totals_and_events_anew() -> None:
    observed = observe()
    observed.engine.add(make_request("a", range(10, 42), 1))
    events = observed.step().events
    assert events is not None
    observed.engine.forget()

    output = observed.step()

    assert output.stats.num_steps == 0
    assert (output.events, output.notes) == (None, [])
    observed.engine.add(make_request("b", range(10, 42), 1))
    again = observed.step()
    assert again.events == events
    assert again.load.num_cached_prompt_tokens == 0
