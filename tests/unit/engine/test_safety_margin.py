"""The margin of predictions follows what preemptions cost."""

from engine.safety_margin import SafetyMargin


def settle(margin: SafetyMargin, *, lost_every: int, is_crowded: bool = True) -> float:
    for index in range(4000):
        margin.record_done(100, is_crowded=is_crowded)
        if index % lost_every == 0:
            margin.record_lost(100)
    return margin.num_deviations


def test_it_widens_where_more_is_lost_than_may_be_and_narrows_where_less_is() -> None:
    assert settle(SafetyMargin(), lost_every=20) > 3.5  # 5 %
    assert settle(SafetyMargin(), lost_every=100) < -0.5  # 1 %


def test_it_stays_while_nobody_waits() -> None:
    margin = SafetyMargin()
    before = margin.num_deviations
    for _ in range(1000):
        margin.record_done(100, is_crowded=False)
    assert margin.num_deviations == before


def test_the_loss_of_a_long_one_counts_for_more() -> None:
    short, long = SafetyMargin(), SafetyMargin()
    for margin in (short, long):
        margin.record_done(100, is_crowded=False)
    before = short.num_deviations
    short.record_lost(10)
    long.record_lost(200)
    assert before < short.num_deviations < long.num_deviations


def test_a_loss_before_the_first_end_counts_as_one_of_usual_length() -> None:
    margin = SafetyMargin()
    before = margin.num_deviations
    margin.record_lost(5000)
    assert before < margin.num_deviations < before + 1
