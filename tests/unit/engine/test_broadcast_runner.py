import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from cache_tiers.block_image import ImageLayout
from engine.broadcast_runner import BroadcastRunner
from engine.errors import StepOutOfMemory
from engine.follower_link import RanksOutOfStep
from engine.follower_loop import FollowerLoop
from engine.messages import SamplingParams, TokenLogprobs
from engine.step import (
    Admission,
    BlockCopy,
    SampledToken,
    ScheduledSequence,
    StepPlan,
    StepResult,
    TableUpdate,
)
from wire.errors import ConnectionClosed
from wire.frames import HEARTBEAT
from wire.pipe import SyncPipe

NUM_FOLLOWERS = 2


@dataclass
class Recorder:
    """A runner that remembers what it was told, in order."""

    sampled: tuple[SampledToken, ...] = ()
    error: Exception | None = None
    calls: list[StepPlan | tuple[SampledToken, ...]] = field(default_factory=list)

    def execute(self, plan: StepPlan) -> StepResult:
        if self.error is not None:
            raise self.error
        self.calls.append(plan)
        return StepResult(plan.step_id, self.sampled)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self.calls.append(tuple(sampled))

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        raise AssertionError("no plan here moves KV")

    def close(self) -> None:
        pass


@dataclass
class Ranks:
    """Rank 0's runner, and the loops of the others with what hangs on their pipes."""

    leader: BroadcastRunner
    own: Recorder
    others: list[Recorder]
    loops: list[FollowerLoop]
    links: list[SyncPipe]
    """The others' ends of the links to rank 0."""
    fronts: list[socket.socket]


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with ExitStack() as stack:

        def pair() -> tuple[socket.socket, socket.socket]:
            left, right = socket.socketpair()
            return stack.enter_context(left), stack.enter_context(right)

        own, others = Recorder(), [Recorder() for _ in range(NUM_FOLLOWERS)]
        leaders, followers = zip(*(pair() for _ in others), strict=True)
        fronts, backs = zip(*(pair() for _ in others), strict=True)
        links = list(map(SyncPipe, followers))
        loops = [
            FollowerLoop(other, leader=link, front=SyncPipe(back))
            for other, link, back in zip(others, links, backs, strict=True)
        ]
        leader = BroadcastRunner(own, leaders)
        yield Ranks(leader, own, others, loops, links, list(fronts))


def plan(step_id: int, scheduled: tuple[ScheduledSequence, ...] = ()) -> StepPlan:
    return StepPlan(step_id, (), (), (), (), scheduled)


FULL_PLAN = StepPlan(
    step_id=2**40,
    released_slots=(1, 2),
    freed_block_ids=(3,),
    block_copies=(BlockCopy(4, 5),),
    admissions=(
        Admission(
            6,
            SamplingParams(
                max_tokens=7,
                temperature=0.1,
                seed=2**64 - 1,
                stop_token_ids=(8,),
                logit_bias=((9, -100.0),),
                num_logprobs=0,
            ),
            ((10, -1), ()),
            num_prompt_tokens=11,
            past_token_ids=(12, 13),
        ),
    ),
    scheduled=(
        ScheduledSequence(
            6,
            start=14,
            token_ids=(15, 16),
            is_last_pending=True,
            table_updates=(TableUpdate(0, 1, (-1, 17)),),
            sampling_slots=(6, 18),
            following_token_id=19,
        ),
    ),
)


def test_every_rank_executes_the_very_plan(ranks: Ranks) -> None:
    result = ranks.leader.execute(FULL_PLAN)
    for loop in ranks.loops:
        loop.turn()
    assert result.step_id == FULL_PLAN.step_id
    assert ranks.own.calls == [FULL_PLAN]
    assert [other.calls for other in ranks.others] == [[(), FULL_PLAN]] * NUM_FOLLOWERS


def test_what_rank_0_sampled_comes_before_the_next_plan_without_log_probabilities(
    ranks: Ranks,
) -> None:
    ranks.own.sampled = (SampledToken(3, 7, TokenLogprobs(-0.5, [7], [-0.5])), SampledToken(4, -1))
    ranks.leader.execute(plan(1))
    ranks.leader.execute(plan(2))
    ranks.loops[0].turn()
    sampled = (SampledToken(3, 7), SampledToken(4, -1))
    assert ranks.others[0].calls == [(), plan(1), sampled, plan(2)]


@pytest.mark.parametrize("error", [RuntimeError("no such\nkernel"), StepOutOfMemory("too much")])
def test_a_step_that_fails_on_rank_0_is_no_exception_that_an_engine_could_catch(
    ranks: Ranks, error: Exception
) -> None:
    ranks.own.error = error
    with pytest.raises(RanksOutOfStep, match=r"a step failed: (RuntimeError|StepOutOfMemory): "):
        ranks.leader.execute(plan(1))
    assert not issubclass(RanksOutOfStep, Exception)


def test_a_step_that_fails_on_another_rank_ends_its_loop(ranks: Ranks) -> None:
    ranks.others[1].error = StepOutOfMemory("too much")
    ranks.leader.execute(plan(1))
    with pytest.raises(StepOutOfMemory):
        ranks.loops[1].run()


def test_a_rank_that_is_gone_fails_the_step(ranks: Ranks) -> None:
    ranks.links[1].close()
    with pytest.raises(RanksOutOfStep, match="rank 2 takes no plans any more"):
        ranks.leader.execute(plan(1))


def test_a_loop_ends_with_rank_0(ranks: Ranks) -> None:
    ranks.leader.close()
    with pytest.raises(ConnectionClosed):
        ranks.loops[0].run()


def test_a_plan_larger_than_a_socket_buffer_waits_for_the_rank_that_reads_it(
    ranks: Ranks,
) -> None:
    """The follower reads in a thread here, as it would in a process of its own."""
    large = plan(1, (ScheduledSequence(0, 0, tuple(range(400_000)), is_last_pending=False),))
    with ThreadPoolExecutor(NUM_FOLLOWERS) as pool:
        turns = [pool.submit(loop.turn) for loop in ranks.loops]
        ranks.leader.execute(large)
        for turn in turns:
            turn.result(timeout=5)
    assert ranks.others[0].calls == [(), large]


def test_a_busy_rank_shows_life_but_not_with_every_step(ranks: Ranks) -> None:
    for step_id in range(100):
        ranks.leader.execute(plan(step_id))
        ranks.loops[0].turn()
    heartbeats = ranks.fronts[0].recv(4096)
    assert 1 <= len(heartbeats) // len(HEARTBEAT) <= 2
