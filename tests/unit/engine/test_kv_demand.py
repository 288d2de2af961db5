"""Ways to look ahead before a sequence is admitted."""

import math
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_manager import BlockManager
from engine.kv_demand import create_kv_demand
from engine.messages import ServiceClass
from engine.predicted_demand import PredictedDemand
from engine.sequence import Sequence
from tests.unit.engine.fakes import EOS, make_config, make_geometry, make_request
from tests.unit.engine.scheduler_harness import Harness, prompt


def make_harness(kv_admission: str, num_blocks: int, max_num_seqs: int = 32) -> Harness:
    config = make_config(max_num_seqs=max_num_seqs, max_num_batched_tokens=256)
    changes = {"kv_admission": kv_admission}
    return Harness(config.model_copy(update=changes), num_blocks=num_blocks)


def add(
    harness: Harness,
    name: str,
    num_tokens: int = 8,
    max_tokens: int = 40,
    *,
    can_stop: bool = True,
    num_samples: int = 1,
    service_class: ServiceClass = ServiceClass.STANDARD,
) -> list[Sequence]:
    return harness.add_request(
        make_request(
            name,
            prompt(sum(map(ord, name)), num_tokens),
            max_tokens,
            stop_token_ids=(EOS,) if can_stop else (),
            num_samples=num_samples,
            service_class=service_class,
        )
    )


def teach(harness: Harness, num_tokens: int, num_answers: int = 200) -> None:
    demand = harness.scheduler._demand
    assert isinstance(demand, PredictedDemand)
    for _ in range(num_answers):
        demand.lengths.observe_end(demand.lengths.first_trial(0), num_tokens)


def num_running(harness: Harness) -> int:
    harness.step()
    return harness.scheduler.num_running


def test_the_worst_case_is_all_tokens_that_everybody_may_generate() -> None:
    # 48 tokens each: 12 blocks, and one for a copy.
    harness = make_harness("worst_case", num_blocks=40)
    for index in range(5):
        add(harness, f"r{index}")
    assert num_running(harness) == 3
    while harness.scheduler.num_running:
        harness.step()
    assert harness.scheduler.totals.num_preemptions == 0


def test_answers_that_were_short_let_more_in_than_the_worst_case_does() -> None:
    harness = make_harness("predicted", num_blocks=40)
    teach(harness, num_tokens=4)
    for index in range(12):
        add(harness, f"r{index}")
    assert num_running(harness) >= 8


def test_answers_that_were_long_let_fewer_in_than_optimism_does() -> None:
    for kv_admission, least, most in (("predicted", 3, 4), ("optimistic", 10, 12)):
        harness = make_harness(kv_admission, num_blocks=40)
        if kv_admission == "predicted":
            teach(harness, num_tokens=39)
        for index in range(12):
            add(harness, f"r{index}")
        assert least <= num_running(harness) <= most


def test_without_a_stop_token_an_answer_has_all_its_tokens() -> None:
    harness = make_harness("predicted", num_blocks=40)
    teach(harness, num_tokens=2)
    for index in range(12):
        add(harness, f"r{index}", can_stop=False)
    assert num_running(harness) == 3
    while harness.scheduler.num_running:
        harness.step()
    assert harness.scheduler.totals.num_preemptions == 0


def test_those_that_soon_end_make_room_for_those_that_have_just_begun() -> None:
    harness = make_harness("predicted", num_blocks=22)
    add(harness, "old", can_stop=False)
    add(harness, "second", max_tokens=60, can_stop=False)
    assert num_running(harness) == 1  # 12 blocks and 13 at the same time
    for _ in range(20):
        harness.step()
    assert harness.scheduler.num_running == 2
    while harness.scheduler.num_running:
        harness.step()
    assert harness.scheduler.totals.num_preemptions == 0


def test_what_an_answer_has_already_says_how_long_it_gets() -> None:
    harness = make_harness("predicted", num_blocks=1000)
    teach(harness, 8, 180)
    teach(harness, 200, 20)
    demand = harness.scheduler._demand
    assert isinstance(demand, PredictedDemand)
    [fresh] = add(harness, "fresh", max_tokens=400)
    young = demand.peak_blocks([], fresh, 2)
    fresh.generated_ids += [7] * 20
    old = demand.peak_blocks([], fresh, 7)
    demand.margin.num_deviations = 0.0
    assert young < 30 < 45 < old


def test_who_comes_after_an_urgent_one_does_not_hold_it_back() -> None:
    harness = make_harness("predicted", num_blocks=60)
    for index in range(4):
        add(harness, f"b{index}", can_stop=False, service_class=ServiceClass.BATCH)
    assert num_running(harness) == 4
    [urgent] = add(harness, "u", can_stop=False, service_class=ServiceClass.INTERACTIVE)
    [late] = add(harness, "late", can_stop=False, service_class=ServiceClass.BATCH)

    harness.step()

    assert urgent.slot is not None
    assert late.slot is None
    assert harness.scheduler.totals.num_preemptions == 0  # there was a block for now


def test_nobody_gives_way_for_one_that_its_own_class_leaves_no_room_for() -> None:
    harness = make_harness("predicted", num_blocks=40)
    for index in range(3):
        add(harness, f"i{index}", can_stop=False, service_class=ServiceClass.INTERACTIVE)
    assert num_running(harness) == 3
    [batch] = add(harness, "b", 3, 1, can_stop=False, service_class=ServiceClass.BATCH)
    batch.order = (1e9, 99, 0)
    harness.step()
    add(harness, "u", can_stop=False, service_class=ServiceClass.INTERACTIVE)

    harness.step()

    assert harness.scheduler.totals.num_preemptions == 0


def test_samples_part_only_as_far_as_their_answers_fit() -> None:
    harness = make_harness("predicted", num_blocks=40)
    samples = add(harness, "r", can_stop=False, num_samples=6)  # 2 shared blocks, 10 more each
    assert num_running(harness) == 3
    while any(sample.finish_reason is None for sample in samples):
        harness.step()
    assert harness.scheduler.totals.num_preemptions == 0


def test_a_prompt_without_an_answer_counts_while_it_is_here() -> None:
    harness = make_harness("predicted", num_blocks=20)
    demand = harness.scheduler._demand
    assert isinstance(demand, PredictedDemand)
    [sequence] = add(harness, "r", max_tokens=0)
    assert demand.peak_blocks([], sequence, num_new_blocks=2) == 2


def test_only_answers_that_ended_by_themselves_teach_an_end() -> None:
    harness = make_harness("predicted", num_blocks=100)
    demand = harness.scheduler._demand
    assert isinstance(demand, PredictedDemand)

    def reach(num_tokens: int) -> float:
        return math.exp(float(demand.lengths.log_survival(np.array(float(num_tokens)))))

    before = reach(16)
    for index in range(20):
        add(harness, f"r{index}", max_tokens=8)  # cut off
        add(harness, f"n{index}", max_tokens=12, can_stop=False)
    while harness.scheduler.num_running or harness.scheduler.num_waiting:
        harness.step()
    assert reach(16) > before
    aborted = [add(harness, f"a{index}")[0] for index in range(20)]
    for _ in range(12):
        harness.step()
    for sequence in aborted:
        harness.scheduler.finish(sequence)
    assert reach(16) < before


def test_least_tokens_that_were_asked_for_are_generated() -> None:
    harness = make_harness("predicted", num_blocks=100)
    teach(harness, num_tokens=2)
    demand = harness.scheduler._demand
    assert isinstance(demand, PredictedDemand)
    request = make_request("r", prompt(1, 8), 40, stop_token_ids=(EOS,))
    sampling = msgspec.structs.replace(request.sampling, min_tokens=32)
    request = msgspec.structs.replace(request, sampling=sampling)
    sequence = Sequence(request, deadline_s=1e9, max_len=48)
    assert demand.peak_blocks([], sequence, 2) >= 8  # 32 tokens more at the least


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 60), st.integers(0, 200), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    windows=st.sampled_from([(None,), (None, 9), (5,), (None, None, 30)]),
    deviations=st.floats(-1, 3),
    answers=st.lists(st.integers(1, 150), max_size=30),
)
def test_the_peak_is_that_of_each_sequence_followed_by_itself(
    rows: list[tuple[int, int, int, bool]],
    windows: tuple[int | None, ...],
    deviations: float,
    answers: list[int],
) -> None:
    blocks = BlockManager(500, make_geometry(windows), prefix_caching=False)
    demand = create_kv_demand("predicted", blocks)
    assert isinstance(demand, PredictedDemand)
    demand.margin.num_deviations = deviations
    for num_tokens in answers:
        demand.lengths.observe_end(demand.lengths.first_trial(0), num_tokens)
    sequences = []
    for index, (num_prompt, num_generated, num_left, can_stop) in enumerate(rows):
        request = make_request(
            f"r{index}", prompt(index, num_prompt), 999, stop_token_ids=(EOS,) if can_stop else ()
        )
        max_len = num_prompt + num_generated + num_left
        sequence = Sequence(request, deadline_s=1e9, max_len=max_len, order=(0.0, index, 0))
        sequence.generated_ids = [7] * num_generated
        sequences.append(sequence)
    *running, candidate = sequences
    for _ in range(17 * len(running)):
        blocks._pool.allocate()

    peak = demand.peak_blocks(running, candidate, num_new_blocks=5)

    assert peak == pytest.approx(slow_peak(demand, sequences, windows, 17 * len(running)))


def slow_peak(
    demand: PredictedDemand,
    sequences: list[Sequence],
    windows: tuple[int | None, ...],
    num_used: int,
) -> float:
    """The twin in plain Python."""

    held = make_geometry(windows).num_blocks_of
    total = sum(held(s.num_tokens) for s in sequences[:-1])
    begins = [0, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    peak = 0.0
    for begin, end in pairwise(begins):
        mean = variance = 0.0
        for sequence in sequences:
            num_left = sequence.max_len - sequence.num_tokens
            if 0 < begin >= num_left:
                continue
            share = 1.0
            if sequence.sampling.stop_token_ids:
                num = sequence.num_generated_tokens
                log_now, log_then = demand.lengths.log_survival(
                    np.array([num, num + min(num_left, (begin + end) / 2)])
                )
                share = math.exp(log_then - log_now)
            charged = 5.0
            if sequence is not sequences[-1]:
                charged = num_used * held(sequence.num_tokens) / total
            num_tokens = sequence.num_tokens + min(num_left, end)
            size = charged + held(num_tokens) - held(sequence.num_tokens)
            mean += share * size
            variance += share * (1 - share) * size**2
        if variance or mean:
            peak = max(peak, mean + demand.margin.num_deviations * math.sqrt(variance))
    return peak
