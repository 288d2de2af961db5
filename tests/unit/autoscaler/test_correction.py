import pytest

from autoscaler.correction import Correction, ServedLoad
from autoscaler.window import Totals


def learn(
    seconds: int,
    *,
    use: float,
    late: float = 0.0,
    num_waiting: float = 0.0,
    served: float = 1.0,
    correction: Correction | None = None,
) -> Correction:
    """Ten replicas that promise 100 requests/s at a load of ``use`` each; of what begins, ``late``
    is late; ``served``: of what is promised."""
    made = correction or Correction()
    begun = 3000 * min(use, served)
    recent = Totals(30, 3000 * use, num_begun=begun, num_ended=begun, num_ttft_late=begun * late)
    for _ in range(seconds):
        made.update(1.0, ServedLoad(10 * use, 10, num_waiting, 100.0, recent))
    return made


def test_what_is_served_in_time_within_the_load_changes_nothing() -> None:
    assert learn(3600, use=0.7).factor == 1.0


def test_late_answers_at_little_load_lower_it_after_a_minute() -> None:
    assert learn(50, use=0.6, late=0.2).factor == 1.0
    lowered = learn(180, use=0.6, late=0.2)
    assert lowered.is_lowering
    assert 0.3 < lowered.factor < 0.6


def test_late_answers_of_a_fleet_that_is_too_small_say_nothing_of_its_replicas() -> None:
    assert learn(600, use=1.3, late=0.9, num_waiting=500.0).factor == 1.0


def test_a_full_fleet_that_begins_less_than_promised_is_smaller() -> None:
    assert learn(180, use=1.3, late=0.9, num_waiting=500.0, served=0.6).factor < 0.7


def test_in_time_at_more_than_the_load_raises_it_slowly() -> None:
    raised = learn(120, use=1.3)
    assert 1.2 < raised.factor < 1.6


def test_a_surge_proves_nothing_before_its_answers_end() -> None:
    surge = learn(55, use=1.3)
    assert surge.factor == 1.0
    late = learn(10, use=1.3, late=0.2, correction=surge)
    assert learn(55, use=1.3, correction=late).factor == 1.0


@pytest.mark.parametrize(("use", "late", "bound"), [(0.5, 1.0, 0.4), (3.0, 0.0, 2.5)])
def test_stays_within_bounds(use: float, late: float, bound: float) -> None:
    assert learn(5000, use=use, late=late).factor == pytest.approx(bound)


def test_what_was_wrong_once_is_forgotten() -> None:
    lowered = learn(300, use=0.6, late=0.2)
    later = learn(8 * 3600, use=0.3, correction=lowered)
    assert later.factor == pytest.approx(1.0, abs=0.03)


def test_without_replicas_there_is_nothing_to_learn() -> None:
    made = Correction()
    made.update(1.0, ServedLoad(3.0, 0, 9.0, 0.0, Totals(30, 90, num_begun=90, num_ttft_late=90)))
    assert made.factor == 1.0
