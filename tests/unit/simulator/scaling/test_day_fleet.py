"""The day's simulation agrees with the whole simulator where both can be run, and fleets change as
policies say.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from engine.performance_profile import StepCost
from simulator.fleet import FleetSpec, simulate
from simulator.performance import LinearModel
from simulator.replica_spec import DEFAULT_CONFIG, ReplicaSpec
from simulator.scaling.day_fleet import DayFleet, DayOutcome, DaySpec
from simulator.scaling.day_replica import DayReplica
from simulator.scaling.day_workload import ChatShape, DayWorkload, make_day
from simulator.scaling.fleet_control import ScaledFleet
from simulator.scaling.fleet_scaler import FleetScaler
from simulator.scaling.headwater import Headwater
from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

COST = StepCost(
    base_s=0.009, per_prefill_token_s=36e-6, per_context_token_s=2e-8, per_attended_token_s=1e-10
)
SHAPE = ChatShape(
    num_turns=4, num_system_tokens=512, user_tokens=300.0, answer_tokens=60.0, think_s=2.0,
    answer_sigma=0.5,
)  # fmt: skip
SPEC = DaySpec(COST, 1_000_000)
SETTING = ScalingSetting(8.0, 5.0, tick_s=1.0)


def replace_cost(**changes: float) -> StepCost:
    return msgspec.structs.replace(COST, **changes)


class AtTimes:
    """So many from each time on."""

    def __init__(self, *steps: tuple[float, int]) -> None:
        self._steps = steps
        self.views: list[ScalingView] = []

    def size(self, view: ScalingView) -> Wanted:
        self.views.append(view)
        return Wanted(max((at, num) for at, num in self._steps if at <= view.now_s)[1])


@pytest.fixture(scope="module")
def chat() -> DayWorkload:
    return make_day(SHAPE, np.full(5, 16.0), 10.0)


def run(workload: DayWorkload, policy: AtTimes, num: int) -> tuple[DayOutcome, FleetScaler]:
    scaler = FleetScaler(policy, SETTING)
    return DayFleet(workload, SPEC, scaler, num).run(), scaler


def test_it_agrees_with_the_whole_simulator(chat: DayWorkload) -> None:
    def policy() -> AtTimes:
        return AtTimes((0, 2), (15, 4), (30, 2))

    day, day_scaler = run(chat, policy(), 2)
    config = DEFAULT_CONFIG.model_copy(update={"max_num_batched_tokens": SPEC.max_step_tokens})
    replica = ReplicaSpec(LinearModel(COST), SPEC.num_kv_tokens, config)
    scaler = FleetScaler(policy(), SETTING)
    control = ScaledFleet(scaler, replica, 0.7, 0.04)
    whole = simulate(chat.as_requests(), FleetSpec(2, replica), control)
    ttfts = [request.ttft_s for request in whole.requests]
    tpots = [tpot for request in whole.requests if (tpot := request.tpot_s) is not None]
    assert day.hit_rate == pytest.approx(whole.hit_rate, rel=0.03)
    assert day_scaler.replica_s == pytest.approx(scaler.replica_s, rel=0.03)
    for share in (50, 99):
        assert np.percentile(day.ttft_s, share) == pytest.approx(
            np.percentile(ttfts, share), rel=0.15
        )
        assert np.nanpercentile(day.tpot_s, share) == pytest.approx(
            np.percentile(tpots, share), rel=0.15
        )


def test_a_single_request_takes_its_steps() -> None:
    replica = DayReplica(0, COST, 256, 2048)
    replica.submit(0.0, 7, num_cached=0, prompt=3000, answer=3)
    times = []
    for _ in range(3):
        times.append(replica.end_s)
        ended = replica.finish()
        if ended.begun:
            begun_s = times[-1]
    first = COST.base_s + COST.per_prefill_token_s * 2048 + COST.per_attended_token_s * 2048 * 1024
    rest = 3000 - 2048
    second = (
        COST.base_s
        + COST.per_prefill_token_s * rest
        + COST.per_attended_token_s * rest * (2048 + rest / 2)
    )
    assert times[0] == pytest.approx(first)
    assert begun_s == times[1] == pytest.approx(first + second)
    decodes = 2 * COST.base_s + COST.per_context_token_s * (3000 + 3001)
    assert times[2] == pytest.approx(first + second + decodes)
    assert replica.is_idle
    assert replica.num_context == replica.num_running == replica.pending_tokens == 0
    assert replica.num_generated == 3


def test_a_stretch_is_cut_at_the_step_under_way() -> None:
    replica = DayReplica(0, COST, 256, 2048)
    replica.submit(0.0, 0, 0, 1000, 1000)
    replica.finish()
    begun_s = replica.end_s - replica._stretch_s(999)
    step_s = COST.base_s + COST.per_context_token_s * 1000
    replica.submit(begun_s + 9.5 * step_s, 1, 0, 10, 1)
    ten_steps_s = 10 * step_s + COST.per_context_token_s * 45
    assert replica.end_s == pytest.approx(begun_s + ten_steps_s)


def test_a_start_takes_the_lead_and_who_leaves_drains(chat: DayWorkload) -> None:
    policy = AtTimes((0, 2), (10, 3), (20, 2))
    run(chat, policy, 2)
    sizes = {view.now_s: (view.ready, view.pending) for view in policy.views}
    assert sizes[11.0] == (2, 1)
    assert sizes[15.0] == (3, 0)
    assert sizes[21.0] == (2, 0)


def test_production_is_shown_what_happens(chat: DayWorkload) -> None:
    policy = AtTimes((0, 2), (20, 3))
    seen = []

    class Watcher(AtTimes):
        def size(self, view: ScalingView) -> Wanted:
            assert view.observe is not None
            seen.append(view.observe())
            return policy.size(view)

    run(chat, Watcher((0, 1)), 2)
    demands = [each.demand for each in seen if each.demand is not None]
    assert sum(demand.num_arrived for demand in demands) == len(chat)
    assert sum(demand.num_begun for demand in demands) == len(chat)
    assert sum(demand.num_ended for demand in demands) == len(chat)
    assert sum(demand.num_prompt_tokens for demand in demands) == chat.prompts.sum()
    assert sum(demand.num_generated_tokens for demand in demands) == pytest.approx(
        chat.answers.sum(), rel=0.02
    )
    starting = next(each for each in seen if each.starting)
    assert starting.serve is not None
    assert starting.serve.target_num_replicas == 3
    assert len(starting.replicas) == 2


def test_production_sizes_a_fleet_of_engines(chat: DayWorkload) -> None:
    """It knows what a replica takes from what engines tell, and grows when they are too few."""
    policy = Headwater(SETTING)
    scaler = FleetScaler(policy, SETTING)
    DayFleet(chat, replace(SPEC, cost=replace_cost(per_prefill_token_s=4e-4)), scaler, 1).run()
    assert policy.plan is not None
    assert not policy.plan.is_held
    assert scaler.num_changes >= 1
    assert policy.plan.num_serving > 1


def test_prompts_grow_with_the_history_until_it_is_trimmed(chat: DayWorkload) -> None:
    one = chat.sessions == chat.sessions[len(chat) // 2]
    prompts, firsts, turns = chat.prompts[one], chat.first_turns[one], chat.turns[one]
    assert turns.tolist() == list(range(len(turns)))
    for turn in range(1, len(turns)):
        if firsts[turn] == firsts[turn - 1]:
            assert prompts[turn] > prompts[turn - 1] - SHAPE.max_user_tokens
        history = prompts[turn] - SHAPE.num_system_tokens
        assert history <= SHAPE.max_history_tokens + SHAPE.max_user_tokens
    assert (np.diff(chat.arrivals_s) >= 0).all()


def test_keys_of_a_session_begin_alike_as_long_as_nothing_is_dropped(chat: DayWorkload) -> None:
    requests = {request.request_id: request for request in chat.as_requests().requests}
    first_turn_of = {
        (session, turn): first
        for session, turn, first in zip(
            chat.sessions.tolist(), chat.turns.tolist(), chat.first_turns.tolist(), strict=True
        )
    }
    num_alike = 0
    for (session, turn), first in first_turn_of.items():
        before, now = (requests.get(f"s{session}-{each}") for each in (turn - 1, turn))
        if before is None or now is None or first_turn_of[session, turn - 1] != first:
            continue
        num_alike += 1
        num_shared = min(len(before.block_keys), len(now.block_keys))
        assert now.block_keys[:num_shared] == before.block_keys[:num_shared]
        assert len(now.block_keys) == now.num_prompt_tokens // 128
    assert num_alike > 100


def test_a_burst_comes_on_top() -> None:
    calm = make_day(SHAPE, np.full(30, 16.0), 10.0)
    burst = make_day(SHAPE, np.full(30, 16.0), 10.0, bursts=[(100.0, 20.0, 200)])
    assert len(burst.between(100, 130)) > 1.5 * len(calm.between(100, 130))
    assert len(burst) == pytest.approx(len(calm) + 200 * SHAPE.num_turns, rel=0.1)
