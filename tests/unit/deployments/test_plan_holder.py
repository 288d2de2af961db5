"""The plan holder: targets for Serve, what Serve says for the autoscaler, changes for people."""

from typing import Any

import msgspec
import pytest

from autoscaler.plan import Cause, ModelPlan, Plan
from deployments.plan_holder import NUM_REMEMBERED, PlanHolder
from deployments.plan_messages import Decided, ModelWeights, Recalled, ServeReport


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def plan_of(
    *models: ModelPlan, epoch: int = 1, made_s: float = 0.0, is_dry_run: bool = False
) -> bytes:
    plan = Plan(made_s, 1_000_000.0 + made_s, epoch, 1, models, is_dry_run=is_dry_run)
    return msgspec.msgpack.encode(plan)


def model(num_serving: int, num_parked: int = 0, **fields: Any) -> ModelPlan:
    values: dict[str, Any] = {"causes": (Cause.FORECAST,), "reason": "r", "next_ready_s": None}
    return ModelPlan("m", num_serving, num_parked, 0, 0, {}, **(values | fields))


SERVE = (3, 2, 0, 9)


def explained(holder: PlanHolder, last: int = 10) -> dict[str, list[Decided]]:
    return msgspec.msgpack.decode(holder.explain(last), type=dict[str, list[Decided]])


def test_serve_gets_the_sum_of_what_serves_and_sleeps_with_the_plans_age() -> None:
    clock = Clock()
    holder = PlanHolder(clock)
    holder.publish(plan_of(model(4, 2)))
    clock.now_s += 3
    assert holder.exchange("m", SERVE, {}) == (6, 3.0)
    assert holder.exchange("other", SERVE, {}) == (None, 3.0)


@pytest.mark.parametrize(
    "plan",
    [plan_of(model(4, is_held=True)), plan_of(model(4), is_dry_run=True)],
    ids=["held", "dry"],
)
def test_a_plan_that_is_not_carried_out_has_no_target(plan: bytes) -> None:
    holder = PlanHolder()
    holder.publish(plan)
    assert holder.exchange("m", SERVE, {})[0] is None


def test_without_a_plan_serve_is_told_so() -> None:
    with pytest.raises(LookupError, match="no plan yet"):
        PlanHolder().exchange("m", SERVE, {})


def test_an_autoscaler_that_was_replaced_is_told_so_and_changes_nothing() -> None:
    clock = Clock()
    holder = PlanHolder(clock)
    holder.publish(plan_of(model(4), epoch=2))
    clock.now_s += 5
    with pytest.raises(RuntimeError, match="started later"):
        holder.publish(plan_of(model(9), epoch=1))
    assert holder.exchange("m", SERVE, {}) == (4, 5.0)
    assert msgspec.msgpack.decode(holder.recall(), type=Recalled).epoch == 2


def test_the_autoscaler_hears_what_serve_said_and_when() -> None:
    clock = Clock()
    holder = PlanHolder(clock)
    holder.publish(plan_of(model(4)))
    holder.exchange("m", SERVE, {"CPU": 2, "GPU": 0, "accel_slot": "x"})
    clock.now_s += 7
    reports = msgspec.msgpack.decode(holder.publish(plan_of(model(4))), type=dict[str, ServeReport])
    assert reports == {"m": ServeReport(7.0, *SERVE, bundle={"CPU": 2.0})}


@pytest.mark.parametrize("bundle", [None, 3, ["CPU"], "CPU"])
def test_a_bundle_of_another_shape_is_none(bundle: object) -> None:
    holder = PlanHolder()
    holder.publish(plan_of(model(4)))
    assert holder.exchange("m", SERVE, bundle)[0] == 4


def test_changes_are_remembered_and_what_is_in_force_comes_last() -> None:
    holder = PlanHolder()
    for second, num in enumerate([1, 1, 1, 2, 2, 1]):
        holder.publish(plan_of(model(num, reason=f"at {second}"), made_s=second))
    holder.publish(plan_of(model(1, reason="still"), made_s=9))
    found = explained(holder)["m"]
    assert [(d.plan.num_serving, d.plan.reason) for d in found] == [
        (1, "at 0"),
        (2, "at 3"),
        (1, "at 5"),
        (1, "still"),
    ]
    assert explained(holder, last=1)["m"] == found[-1:]


def test_less_than_one_decision_can_not_be_shown() -> None:
    with pytest.raises(ValueError, match="take 1 or more"):
        PlanHolder().explain(0)


def test_only_so_many_are_remembered() -> None:
    holder = PlanHolder()
    for second in range(NUM_REMEMBERED + 50):
        holder.publish(plan_of(model(1 + second % 2), made_s=second))
    assert len(explained(holder, last=10_000)["m"]) == NUM_REMEMBERED


def test_what_nodes_shall_hold_is_passed_on_and_nonsense_is_not() -> None:
    holder = PlanHolder()
    holder.publish(plan_of())
    weights = {"source": "s3://b/m", "node_cache": {}, "weights_sha256": "ab"}
    for model, said in (("a", weights), ("b", {"source": 3}), ("c", None)):
        holder.exchange(model, SERVE, {}, said)
    reports = msgspec.msgpack.decode(holder.publish(plan_of()), type=dict[str, ServeReport])
    assert reports["a"].weights == ModelWeights("s3://b/m", {}, None, "ab")
    assert (reports["b"].weights, reports["c"].weights) == (None, None)
