import pytest

from benchmarks.engine_steps import Stopwatch, summarize_jitter


def test_jitter_is_the_rare_step_over_the_usual_one() -> None:
    rows = {row.case: row for row in summarize_jitter([10.0] * 990 + [40.0] * 10)}
    assert rows["step_jitter_p50"].value == 10.0
    assert rows["step_jitter_p99_9"].value == 40.0
    assert rows["step_jitter_max"].value == 40.0
    assert rows["step_jitter"].value == pytest.approx(4.0)
    assert rows["step_jitter"].limit == 1.5


def test_a_stopwatch_adds_up_its_calls_and_passes_everything_on() -> None:
    watch = Stopwatch()
    double = watch.wrap(lambda value, *, plus=0: 2 * value + plus)
    assert double(4, plus=1) == 9
    first_s = watch.total_s
    assert first_s > 0
    double(4)
    assert watch.total_s > first_s


def test_a_stopwatch_counts_calls_that_fail() -> None:
    watch = Stopwatch()

    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  nothing else is raised here
        watch.wrap(fail)()
    assert watch.total_s > 0
