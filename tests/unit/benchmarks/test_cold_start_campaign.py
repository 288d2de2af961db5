from collections import Counter

from benchmarks.cold_start_campaign import Report, cases_of, draw_faults
from benchmarks.cold_start_faults import FAULTS
from benchmarks.cold_start_trials import Outcome


def test_a_thousand_faults_are_spread_as_they_say() -> None:
    drawn = Counter(fault.name for fault in draw_faults(1000, seed=0))
    assert drawn.total() == 1000
    for fault in FAULTS:
        assert abs(drawn[fault.name] - fault.num_of_1000) <= 0.2 * fault.num_of_1000 + 10


def test_every_kind_is_tried_in_a_short_campaign_too() -> None:
    assert {fault.name for fault in draw_faults(40, seed=3)} == {fault.name for fault in FAULTS}


def test_the_same_seed_draws_the_same_faults_in_the_same_order() -> None:
    assert draw_faults(60, seed=1) == draw_faults(60, seed=1) != draw_faults(60, seed=2)


def test_without_a_disk_of_its_own_others_take_the_places() -> None:
    drawn = draw_faults(200, seed=0, has_disk=False)
    assert len(drawn) == 200
    assert not any(fault.needs_disk for fault in drawn)


def test_what_ended_wrongly_is_counted_and_told() -> None:
    report = Report(
        [
            Outcome("cut", is_whole=True, origin="peer", seconds=1.0, wrong=None),
            Outcome("cut", is_whole=False, origin="", seconds=3.0, wrong="never ended"),
            Outcome("pin", is_whole=False, origin="", seconds=2.0, wrong=None),
        ]
    )
    values = {case.case: case.value for case in cases_of(report)}
    assert values["faults"] == 3
    assert values["faults_ended_wrongly"] == 1
    assert values["faults_slowest"] == values["faults_cut_slowest"] == 3.0
    assert values["faults_cut_whole_model"] == 1
    assert values["faults_pin_whole_model"] == 0
    assert report.failures == ["cut: never ended"]
