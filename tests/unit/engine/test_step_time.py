"""The model of step times: learned from steps, never negative, inverted to sizes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.step import ScheduledSequence
from engine.step_time import StepTimeModel, StepWork, measure_work

COEFFICIENTS = st.tuples(
    st.floats(1e-3, 2e-2),
    st.floats(1e-5, 1e-3),
    st.floats(1e-5, 1e-3),
    st.floats(0, 1e-6),
    st.floats(0, 1e-6),
)
WORKS = st.builds(
    StepWork,
    st.integers(0, 4096),
    st.integers(0, 256),
    st.integers(0, 500_000),
    st.floats(0, 1e8),
)


def time_of(work: StepWork, coefficients: tuple[float, ...]) -> float:
    base, prefill, decode, context, attended = coefficients
    return (
        base
        + prefill * work.num_prefill_tokens
        + decode * work.num_decodes
        + context * work.num_context_tokens
        + attended * work.num_attended_tokens
    )


def draw_work(draw: random.Random) -> StepWork:
    num_decodes, chunk = draw.randint(0, 64), draw.choice([0, draw.randint(1, 512)])
    context = sum(draw.randint(20, 2000) for _ in range(num_decodes))
    return StepWork(chunk, num_decodes, context, chunk * (draw.choice([0, 2000]) + chunk / 2))


def learn(
    coefficients: tuple[float, ...],
    *,
    num_steps: int = 300,
    noise: float = 0.0,
    outlier_share: float = 0.0,
    seed: int = 0,
) -> StepTimeModel:
    draw, model = random.Random(seed), StepTimeModel()
    for _ in range(num_steps):
        work = draw_work(draw)
        slow = 3.0 if draw.random() < outlier_share else 1.0
        time_s = time_of(work, coefficients) * slow * max(0.2, draw.gauss(1, noise))
        model.record(work, time_s)
    return model


TYPICAL = (7e-3, 2.5e-4, 1.3e-4, 3e-7, 2e-7)
SIXTEEN = StepWork(num_decodes=16, num_context_tokens=8000)


def test_the_work_of_a_plan_is_counted_by_kind() -> None:
    entries = [
        ScheduledSequence(0, 10, (), True),
        ScheduledSequence(1, 30, (), True),
        ScheduledSequence(2, 100, (7,) * 8, False),
        ScheduledSequence(3, 0, (7,) * 4, False),
    ]
    assert measure_work(entries) == StepWork(12, 2, 40, 8 * 104 + 4 * 2)


@settings(max_examples=8, deadline=None)
@given(COEFFICIENTS, st.integers(0, 99))
def test_times_of_unseen_steps_are_known_after_noisy_ones(
    coefficients: tuple[float, ...], seed: int
) -> None:
    model = learn(coefficients, noise=0.05, outlier_share=0.02, seed=seed)
    draw = random.Random(seed + 1)
    for _ in range(20):
        work = draw_work(draw)
        assert model.predict(work) == pytest.approx(time_of(work, coefficients), rel=0.15)
    assert 0.02 < model.error < 0.25


def test_without_noise_the_coefficients_are_found() -> None:
    model = learn(TYPICAL)
    found = (
        model.base_s,
        model.per_prefill_token_s,
        model.per_decode_s,
        model.per_context_token_s,
        model.per_attended_token_s,
    )
    assert found == pytest.approx(TYPICAL, rel=0.02)
    assert model.confidence > 0.97


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(WORKS, st.floats(0, 1e3)), min_size=1, max_size=60),
    st.lists(WORKS, min_size=1),
)
def test_whatever_steps_took_nothing_is_predicted_to_take_less_than_no_time(
    steps: list[tuple[StepWork, float]], asked: list[StepWork]
) -> None:
    model = StepTimeModel()
    for work, time_s in steps:
        model.record(work, time_s)
    assert all(model.predict(work) >= 0 for work in asked)
    assert 0 <= model.confidence <= 1


@settings(max_examples=25, deadline=None)
@given(
    COEFFICIENTS,
    st.floats(0, 1),
    st.floats(1, 3),
    st.integers(0, 5000),
    st.integers(0, 64),
)
def test_the_inversion_is_monotone_and_fits(
    coefficients: tuple[float, ...], time_s: float, factor: float, start: int, num_decodes: int
) -> None:
    model = learn(coefficients, num_steps=40)
    decodes = StepWork(num_decodes=num_decodes, num_context_tokens=500 * num_decodes)

    def tokens(time_s: float, decodes: StepWork = decodes, start: int = start) -> int:
        return model.prefill_tokens_within(time_s, decodes, start=start, most=512)

    def step_s(num_tokens: int) -> float:
        attended = num_tokens * (start + num_tokens / 2)
        return model.predict(
            StepWork(num_tokens, num_decodes, decodes.num_context_tokens, attended)
        )

    fitting = tokens(time_s)
    assert 0 <= fitting <= 512
    assert fitting == 0 or step_s(fitting) <= time_s * (1 + 1e-9)
    assert fitting == 512 or step_s(fitting + 1) > time_s * (1 - 1e-9)
    assert fitting <= tokens(time_s * factor)
    assert fitting <= tokens(time_s, start=start // 2)
    assert fitting <= tokens(time_s, decodes=StepWork())


def test_long_after_the_last_prompt_its_cost_is_still_known() -> None:
    model = learn(TYPICAL)
    for step in range(2000):
        work = StepWork(num_decodes=16, num_context_tokens=8000 + 16 * (step % 500))
        model.record(work, time_of(work, TYPICAL))
    mixed = StepWork(100, 16, 8000, 5000.0)
    assert model.predict(mixed) == pytest.approx(time_of(mixed, TYPICAL), rel=0.02)


def test_one_step_that_lost_its_core_changes_little_and_a_slower_machine_is_believed() -> None:
    model = learn(TYPICAL, noise=0.03)
    before_s = model.predict(SIXTEEN)
    for _ in range(4):
        model.record(SIXTEEN, 10 * before_s)
    assert model.predict(SIXTEEN) == pytest.approx(before_s, rel=0.15)
    for _ in range(200):
        model.record(SIXTEEN, 2 * before_s)
    assert model.predict(SIXTEEN) == pytest.approx(2 * before_s, rel=0.05)


def test_nothing_is_known_before_prompts_and_decodes_were_seen() -> None:
    model = StepTimeModel()
    assert (model.predict(SIXTEEN), model.confidence) == (0.0, 0.0)
    for _ in range(50):
        model.record(SIXTEEN, 0.01)
    assert model.confidence == 0.0
    for chunk in range(1, 9):
        model.record(StepWork(num_prefill_tokens=8 * chunk), 0.01 + 0.001 * chunk)
    assert model.confidence > 0.7


def test_steps_that_took_no_time_say_nothing() -> None:
    model = StepTimeModel()
    for time_s in (0.0, -1.0, float("nan"), float("inf")):
        model.record(SIXTEEN, time_s)
    assert model.predict(SIXTEEN) == 0.0
