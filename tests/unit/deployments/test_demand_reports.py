"""From what gateways report to what the planner observes: nothing lost, nothing twice, and unknown
never taken for zero."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.autoscaling_messages import (
    NUM_LENGTH_BUCKETS,
    NUM_TIME_BUCKETS,
    DemandReport,
    EngineSeen,
    ModelDemand,
)
from autoscaler.config import AutoscalerConfig, ModelScalingConfig
from autoscaler.observation import Demand, ModelObservation, ServeObservation
from cache_tiers.rung import Rung
from deployments.demand_reports import SILENT_S, DemandReports
from engine.messages import LoadView

CONFIG = AutoscalerConfig(models=(ModelScalingConfig(name="m", ttft_target_s=0.5),))


def counts(num_buckets: int, **at: int) -> tuple[int, ...]:
    """`b4=3`: three values in bucket 4."""
    return tuple(at.get(f"b{bucket}", 0) for bucket in range(num_buckets))


def demand_of(num_arrived: int, engines: tuple[EngineSeen, ...] = (), **fields: Any) -> ModelDemand:
    values: dict[str, Any] = {
        "num_refused": 0,
        "num_prompt_tokens": 10 * num_arrived,
        "num_uncached_tokens": 5 * num_arrived,
        "num_begun": num_arrived,
        "num_cached_known_tokens": 10 * num_arrived,
        "num_generated_tokens": 3 * num_arrived,
        "num_ended": num_arrived,
        "num_waiting": 0,
        "num_waiting_tokens": 0,
        "oldest_wait_s": 0.0,
        "ttft_counts": counts(NUM_TIME_BUCKETS),
        "tpot_counts": counts(NUM_TIME_BUCKETS),
        "prompt_counts": counts(NUM_LENGTH_BUCKETS),
        "answer_counts": counts(NUM_LENGTH_BUCKETS),
    }
    return ModelDemand(model="m", num_arrived=num_arrived, engines=engines, **(values | fields))


def report(
    gateway: str, made_s: float, num_arrived: int, *args: Any, **fields: Any
) -> DemandReport:
    return DemandReport(gateway, made_s, (demand_of(num_arrived, *args, **fields),))


def engine(name: str, num_generated: int = 0, **fields: Any) -> EngineSeen:
    values = {"rung": Rung.SERVING, "is_moving": False, "is_draining": False, "is_seeded": True}
    return EngineSeen(
        name,
        "n",
        max_num_seqs=8,
        load=LoadView(num_generated_tokens=num_generated),
        **(values | fields),
    )


class Observer:
    """Observes once a second."""

    def __init__(self) -> None:
        self._reports = DemandReports()
        self._now_s = 0.0
        self.serve: dict[str, ServeObservation] = {}

    def model(self, *answers: DemandReport | None, after_s: float = 1.0) -> ModelObservation:
        self._now_s += after_s
        (model,) = self._reports.observe(
            answers, self.serve, CONFIG, now_s=self._now_s, local_s=0.0
        ).models
        return model

    def demand(self, *answers: DemandReport | None) -> Demand | None:
        return self.model(*answers).demand


def test_what_came_at_all_gateways_since_the_last_time_is_added_up() -> None:
    observer = Observer()
    assert observer.demand(report("a", 1, 100), report("b", 51, 900)) is None
    demand = observer.demand(report("a", 2, 103), report("b", 52, 905, num_waiting=4))
    assert demand is not None
    assert (demand.period_s, demand.num_arrived, demand.num_waiting) == (1.0, 8, 4)
    assert (demand.num_prompt_tokens, demand.num_uncached_tokens) == (80, 40)


def test_a_lost_report_makes_demand_unknown_and_loses_nothing() -> None:
    observer = Observer()
    observer.demand(report("a", 1, 0), report("b", 1, 0))
    assert observer.demand(report("a", 2, 10), None) is None
    assert observer.demand() is None
    demand = observer.demand(report("a", 4, 30), report("b", 4, 60))
    assert demand is not None
    assert (demand.period_s, demand.num_arrived) == (3.0, 90)


def test_a_new_gateway_is_unknown_once_and_costs_the_others_nothing() -> None:
    observer = Observer()
    observer.demand(report("a", 1, 0))
    assert observer.demand(report("a", 2, 10), report("new", 7, 5000)) is None
    demand = observer.demand(report("a", 3, 20), report("new", 8, 5010))
    assert demand is not None
    # Twenty in two seconds at the one, ten in one second at the other.
    assert (demand.period_s, demand.num_arrived) == (2.0, 40)


def test_a_gateway_that_started_again_is_another_one() -> None:
    observer = Observer()
    observer.demand(report("a", 1, 1000))
    assert observer.demand(report("a2", 1, 3)) is None
    demand = observer.demand(report("a2", 2, 5))
    assert demand is not None
    assert demand.num_arrived == 2


def test_counts_that_shrink_are_unknown_not_negative() -> None:
    observer = Observer()
    observer.demand(report("a", 1, 100))
    assert observer.demand(report("a", 2, 3)) is None
    demand = observer.demand(report("a", 3, 4))
    assert demand is not None
    assert demand.num_arrived == 1


def test_a_clock_that_stands_still_is_no_rate() -> None:
    observer = Observer()
    observer.demand(report("a", 1, 0))
    assert observer.demand(report("a", 1, 7)) is None
    demand = observer.demand(report("a", 2, 9))
    assert demand is not None
    assert demand.num_arrived == 9


def test_a_model_that_no_gateway_offers_is_unknown() -> None:
    observer = Observer()
    observer.demand(DemandReport("a", 1, ()))
    assert observer.demand(DemandReport("a", 2, ())) is None


def test_a_model_that_is_offered_later_counts_from_zero() -> None:
    observer = Observer()
    observer.demand(DemandReport("a", 1, ()))
    demand = observer.demand(report("a", 2, 6))
    assert demand is not None
    assert demand.num_arrived == 6


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans(), st.booleans()), max_size=30
    )
)
def test_whatever_gets_lost_all_that_came_is_counted_once(
    seconds: list[tuple[int, int, bool, bool]],
) -> None:
    observer = Observer()
    observer.demand(report("a", 0, 0), report("b", 0, 0))
    a = b = 0
    seen = 0.0
    for second, (more_a, more_b, is_a_lost, is_b_lost) in enumerate(seconds, start=1):
        a, b = a + more_a, b + more_b
        demand = observer.demand(
            None if is_a_lost else report("a", second, a),
            None if is_b_lost else report("b", second, b),
        )
        assert (demand is None) == (is_a_lost or is_b_lost)
        seen += demand.num_arrived if demand else 0
    last = observer.demand(report("a", len(seconds) + 1, a), report("b", len(seconds) + 1, b))
    assert last is not None
    assert seen + last.num_arrived == pytest.approx(a + b)


def test_late_answers_and_long_prompts_are_read_off_the_histograms() -> None:
    observer = Observer()
    observer.demand(report("a", 1, 0))
    # Bucket 40 ends at 1024 ms, bucket 20 at 32 ms; the target is 500 ms.
    ttft = counts(NUM_TIME_BUCKETS, b40=3, b20=9)
    prompts = counts(NUM_LENGTH_BUCKETS, b40=50, b44=50)
    demand = observer.demand(report("a", 2, 100, ttft_counts=ttft, prompt_counts=prompts))
    assert demand is not None
    assert demand.num_ttft_late == pytest.approx(3)
    assert demand.prompt_len_p95 == 2048
    assert demand.answer_len_p95 is None


def test_the_newest_view_of_an_engine_counts_once_every_gateway_sends_to_it() -> None:
    observer = Observer()
    old = engine("m/1", 5, rung=Rung.PARKED, is_seeded=False)
    new = engine("m/1", 9)
    for first, second in ((old, new), (new, old)):
        (replica,) = observer.model(
            report("a", 1, 0, (first,)), report("b", 1, 0, (second,))
        ).replicas
        assert (replica.rung, replica.is_seeded) == (Rung.SERVING, False)
        assert replica.load is not None
        assert replica.load.num_generated_tokens == 9


def test_an_engine_that_nobody_hears_of_is_silent_until_serve_counts_without_it() -> None:
    observer = Observer()
    observer.serve = {"m": ServeObservation(2, 2, 1, 9)}
    both = (engine("m/1"), engine("m/2"))
    assert all(r.load for r in observer.model(report("a", 1, 0, both)).replicas)
    replicas = observer.model(report("a", 2, 0, both[:1])).replicas
    assert [(r.engine_id, r.load is None) for r in replicas] == [("m/1", False), ("m/2", True)]
    observer.serve = {"m": ServeObservation(2, 1, 1, 9)}
    (replica,) = observer.model(report("a", 3, 0, both[:1])).replicas
    assert replica.engine_id == "m/1"


def test_silence_ends_after_a_while_and_a_leaving_engine_is_gone_at_once() -> None:
    observer = Observer()
    engines = (engine("m/1"), engine("m/2", is_draining=True))
    observer.model(report("a", 1, 0, engines))
    (silent,) = observer.model(report("a", 2, 0)).replicas
    assert (silent.engine_id, silent.load) == ("m/1", None)
    assert observer.model(report("a", 3, 0), after_s=SILENT_S + 1).replicas == ()
