import pytest

from benchmarks.cold_start_projection import FLOORS, UNIT, Reached, project


def values(reached: dict[str, Reached]) -> dict[str, float]:
    return {case.case.removeprefix("projection_70b_tp8_"): case.value for case in project(reached)}


def test_s3_over_one_100g_interface_is_eleven_seconds_at_the_medium_s_speed() -> None:
    [published, here] = project({"store": Reached(0.5e9, 1.0)})
    assert published.value == published.limit == pytest.approx(11.2)
    assert here.value == pytest.approx(280.0)
    assert {published.unit, here.unit} == {UNIT}
    assert "projection" in published.case


def test_a_rung_that_wastes_half_of_its_medium_takes_twice_the_floor() -> None:
    found = values({"disk": Reached(1e9, 0.5)})
    assert found["nvme_of_8_disks"] == pytest.approx(2 * 140 / 18)


def test_nothing_is_projected_below_the_floor() -> None:
    [published, _] = project({"peer": Reached(3e9, 1.04)})
    assert published.of_limit == 1.0


def test_what_was_not_measured_is_not_projected() -> None:
    assert project({}) == []
    reached = {floor.rung: Reached(1e9, 0.9) for floor in FLOORS}
    assert len(project(reached)) == 2 * len(FLOORS)
