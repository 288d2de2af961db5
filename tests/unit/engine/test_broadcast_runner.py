import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
import pytest

from cache_tiers.block_image import ImageLayout
from cache_tiers.tier import TierError
from engine.broadcast_runner import BroadcastRunner
from engine.errors import KvMemoryError, StepOutOfMemory
from engine.follower_link import RanksOutOfStep
from engine.follower_loop import FollowerLoop
from engine.messages import SamplingParams, TokenLogprobs
from engine.rank_messages import Joined, Transferred
from engine.step import (
    Admission,
    BlockCopy,
    BlockTransfer,
    SampledToken,
    ScheduledSequence,
    StepPlan,
    StepResult,
    TableUpdate,
)
from wire.errors import ConnectionClosed
from wire.frames import HEARTBEAT
from wire.pipe import SyncPipe

T = TypeVar("T")
NUM_FOLLOWERS = 2
LAYOUT = ImageLayout(b"f" * 16, num_shards=3, shard_bytes=64, block_size_tokens=16)


@dataclass
class FakeArena:
    """Of one rank."""

    content: bytes
    error: TierError | None = None
    num_closed: int = 0

    def open(self, _layout: ImageLayout, _socket_path: str) -> memoryview:
        if self.error is not None:
            raise self.error
        return memoryview(self.content)

    def close(self) -> None:
        self.num_closed += 1


@dataclass
class Recorder:
    """A runner that remembers what it was told, in order."""

    sampled: tuple[SampledToken, ...] = ()
    error: Exception | None = None
    failed_loads: tuple[int, ...] = ()
    arenas: list[bytes] = field(default_factory=list)
    has_kv: bool = True
    kv_error: KvMemoryError | None = None
    calls: list[StepPlan | tuple[SampledToken, ...]] = field(default_factory=list)

    def execute(self, plan: StepPlan) -> StepResult:
        if self.error is not None:
            raise self.error
        self.calls.append(plan)
        return StepResult(plan.step_id, self.sampled, failed_loads=self.failed_loads)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self.calls.append(tuple(sampled))

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        assert (layout, socket_path) == (LAYOUT, "/node")
        self.arenas.append(bytes(arena))

    def detach_arena(self) -> None:
        self.arenas.clear()

    def free_kv(self) -> None:
        self.has_kv = False

    def allocate_kv(self) -> None:
        if self.kv_error is not None:
            raise self.kv_error
        self.has_kv = True

    def close(self) -> None:
        pass


@dataclass
class Ranks:
    """Rank 0's runner, and the loops of the others with what hangs on their pipes."""

    leader: BroadcastRunner
    own: Recorder
    others: list[Recorder]
    loops: list[FollowerLoop]
    arenas: list[FakeArena]
    """The others'."""
    links: list[SyncPipe]
    """The others' ends of the links to rank 0."""
    fronts: list[socket.socket]
    leader_ends: list[socket.socket]

    def meanwhile(self, act: Callable[[BroadcastRunner], T]) -> T:
        """What rank 0 does while the others go round once, as they would in their processes."""
        with ThreadPoolExecutor(NUM_FOLLOWERS) as pool:
            turns = [pool.submit(loop.turn) for loop in self.loops]
            done = act(self.leader)
            for turn in turns:
                turn.result(timeout=5)
        return done


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
        arenas = [FakeArena(b"1"), FakeArena(b"2")]
        loops = [
            FollowerLoop(other, leader=link, front=SyncPipe(back), arena=arena)
            for other, link, back, arena in zip(others, links, backs, arenas, strict=True)
        ]
        leader = BroadcastRunner(own, leaders, answer_timeout_s=0.2)
        yield Ranks(leader, own, others, loops, arenas, links, list(fronts), list(leaders))


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
    comparisons=(BlockTransfer(20, 4096, b"k" * 16, 16),),
)
TRANSFER = BlockTransfer(block_id=3, offset=8192, key=b"k" * 16, num_tokens=16)


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
    ranks.meanwhile(lambda leader: leader.execute(large))
    assert ranks.others[0].calls == [(), large]


def test_a_busy_rank_shows_life_but_not_with_every_step(ranks: Ranks) -> None:
    for step_id in range(100):
        ranks.leader.execute(plan(step_id))
        ranks.loops[0].turn()
    heartbeats = ranks.fronts[0].recv(4096)
    assert 1 <= len(heartbeats) // len(HEARTBEAT) <= 2


def test_a_load_that_fails_on_any_rank_has_failed(ranks: Ranks) -> None:
    ranks.own.failed_loads = (1,)
    ranks.others[0].failed_loads = (4, 1)
    ranks.others[1].failed_loads = (0,)
    loading = replace(plan(1), loads=(TRANSFER,) * 5)
    result = ranks.meanwhile(lambda leader: leader.execute(loading))
    assert result.failed_loads == (0, 1, 4)


def test_steps_that_move_nothing_are_not_answered(ranks: Ranks) -> None:
    ranks.meanwhile(lambda leader: leader.execute(FULL_PLAN))
    with pytest.raises(BlockingIOError):
        ranks.leader_ends[0].recv(1, socket.MSG_DONTWAIT)


def test_a_rank_that_gives_no_answer_in_time_is_out_of_step(ranks: Ranks) -> None:
    with pytest.raises(RanksOutOfStep, match="rank 1 gives no answer: timed out"):
        ranks.leader.execute(replace(plan(1), stores=(TRANSFER,)))


def test_a_rank_that_ends_before_it_answers_is_out_of_step(ranks: Ranks) -> None:
    def end(leader: BroadcastRunner) -> None:
        ranks.others[1].error = RuntimeError("no memory")
        with pytest.raises(RanksOutOfStep, match="rank 2 gives no answer: its end is closed"):
            leader.execute(replace(plan(1), loads=(TRANSFER,)))

    def turn(loop: FollowerLoop, link: SyncPipe) -> None:
        try:
            loop.turn()
        except RuntimeError:
            link.close()

    with ThreadPoolExecutor(NUM_FOLLOWERS) as pool:
        turns = [pool.submit(turn, *pair) for pair in zip(ranks.loops, ranks.links, strict=True)]
        end(ranks.leader)
        for done in turns:
            done.result(timeout=5)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Transferred(step_id=7, failed_loads=()), "rank 1 answers step 7 in step 1"),
        (Joined(), "not with Transferred"),
        (["what", 1], "gives no answer"),
    ],
)
def test_an_answer_to_something_else_is_out_of_step(
    ranks: Ranks, answer: object, reason: str
) -> None:
    ranks.links[0].send(msgspec.msgpack.encode(answer))
    with pytest.raises(RanksOutOfStep, match=reason):
        ranks.leader.execute(replace(plan(1), stores=(TRANSFER,)))


def test_every_rank_opens_the_arena_on_its_own(ranks: Ranks) -> None:
    ranks.meanwhile(lambda leader: leader.attach_arena(memoryview(b"0"), LAYOUT, "/node"))
    assert [runner.arenas for runner in (ranks.own, *ranks.others)] == [[b"0"], [b"1"], [b"2"]]


def test_every_rank_lets_go_of_the_arena(ranks: Ranks) -> None:
    ranks.meanwhile(lambda leader: leader.attach_arena(memoryview(b"0"), LAYOUT, "/node"))
    ranks.meanwhile(lambda leader: leader.detach_arena())
    assert [runner.arenas for runner in (ranks.own, *ranks.others)] == [[], [], []]
    assert [arena.num_closed for arena in ranks.arenas] == [1, 1]
    ranks.meanwhile(lambda leader: leader.execute(FULL_PLAN))


def test_without_an_arena_on_one_rank_steps_go_on(ranks: Ranks) -> None:
    ranks.arenas[1].error = TierError("no node cache at /node")
    with pytest.raises(TierError, match="rank 2 can't use the arena: no node cache at /node"):
        ranks.meanwhile(lambda leader: leader.attach_arena(memoryview(b"0"), LAYOUT, "/node"))
    ranks.meanwhile(lambda leader: leader.execute(plan(1)))
    assert ranks.others[1].calls == [(), plan(1)]


def has_kv(ranks: Ranks) -> list[bool]:
    return [runner.has_kv for runner in (ranks.own, *ranks.others)]


def test_all_ranks_give_their_memory_back_and_have_it_again(ranks: Ranks) -> None:
    ranks.meanwhile(lambda leader: leader.free_kv())
    assert has_kv(ranks) == [False] * 3
    ranks.meanwhile(lambda leader: leader.allocate_kv())
    assert has_kv(ranks) == [True] * 3


@pytest.mark.parametrize(("number", "where"), [(0, ""), (1, "rank 1: "), (2, "rank 2: ")])
def test_where_one_rank_finds_no_memory_none_keeps_any_and_all_can_try_again(
    ranks: Ranks, number: int, where: str
) -> None:
    runners = [ranks.own, *ranks.others]
    ranks.meanwhile(lambda leader: leader.free_kv())
    runners[number].kv_error = KvMemoryError("none is left")

    def fail(leader: BroadcastRunner) -> None:
        with pytest.raises(KvMemoryError, match=f"^{where}none is left$"):
            leader.allocate_kv()

    def turn_twice(loop: FollowerLoop) -> None:
        loop.turn()
        loop.turn()

    with ThreadPoolExecutor(NUM_FOLLOWERS) as pool:
        turns = [pool.submit(turn_twice, loop) for loop in ranks.loops]
        fail(ranks.leader)
        for done in turns:
            done.result(timeout=5)
    assert has_kv(ranks) == [False] * 3
    runners[number].kv_error = None
    ranks.meanwhile(lambda leader: leader.allocate_kv())
    assert has_kv(ranks) == [True] * 3
