"""What people read of the autoscaler's decisions, and of what nodes hold."""

from typing import Any

from autoscaler.plan import Cause, ModelPlan, PromotionLead
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import WeightsState
from deployments.autoscale_report import render
from deployments.plan_messages import Decided, NodeStanding


def model(num_serving: int, num_parked: int = 0, **fields: Any) -> ModelPlan:
    values: dict[str, Any] = {"causes": (Cause.FORECAST,), "reason": "r", "next_ready_s": None}
    return ModelPlan("m", num_serving, num_parked, 2, 1, {}, **(values | fields))


def test_people_read_when_what_was_decided_and_why() -> None:
    decided = Decided(0.0, False, model(4, 1, reason="load rises", num_wanted=3.6, next_ready_s=20))
    held = Decided(60.0, False, model(4, 1, causes=(Cause.HOLD_BLIND,), reason="?", is_held=True))
    text = render({"m": [held, decided]})
    assert "1970-01-01 00:01:00  4 serving + 1 parked  [hold_blind, held]  ?" in text
    assert "1970-01-01 00:00:00  4 serving + 1 parked  [forecast]  load rises" in text
    assert "now: 3.60 replicas are wanted before rounding and bounds" in text
    assert "the next one serves in 20 s" in text


def test_people_read_how_long_what_takes_and_where_weights_are() -> None:
    leads = (PromotionLead(Rung.COLD, 120.0, ()), PromotionLead(Rung.STAGED, 3.25, (3.0, 3.3)))
    plan = model(4, leads=leads, start_rung=Rung.STAGED, num_nodes=9, node_lead_s=180.0)
    coming = WeightsState("m", Rung.COLD, Rung.STAGED, num_bytes=200, num_done_bytes=50)
    failed = WeightsState("m", Rung.ON_DISK, Rung.STAGED, num_leases=1, failure="no room: shrink")
    text = render(
        {"m": [Decided(0.0, False, plan)]},
        {"m": [NodeStanding("n" * 56, coming, 2), NodeStanding("k", failed, 0)]},
    )
    assert "cold 120 s (as configured), staged 3.25 s (2 measured)" in text
    assert "the next replica begins staged" in text
    assert "nodes for 9 in all, each 180 s after it is asked for" in text
    assert f"node {'n' * 12}: cold (to be staged, 25%), room for 2 more" in text
    assert "node k: on disk (to be staged), in use by 1, room for 0 more, no room: shrink" in text
