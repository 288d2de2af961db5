"""Orders to sleep and to wake, in any order and at any time, against ranks that take their time."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cache_tiers.rung import Rung
from engine.credits import CreditLedger
from engine.emptying import SETTLE_S, STORE_KEPT_LIMIT_S, Emptying
from engine.errors import ProtocolError
from engine.messages import LoadView, ServiceClass
from engine.rank_messages import (
    HandOver,
    RankCommand,
    RungChange,
    Sleep,
    Stay,
    StoreKept,
    Wake,
)
from engine.rung_keeper import EPOCH_LAPSES_S, RungKeeper
from engine.rung_messages import RungOrder, RungState
from tests.unit.app.routing.virtual_time import run_in_virtual_time

HAND_OVER_S = 2.0
STEP_S = 0.01
SOURCE = 1
LOAD = LoadView(prefill_tokens_per_s=1e6, num_free_blocks=100, num_blocks=100)


@dataclass
class Bench:
    """A keeper, and ranks that carry out what they are told, each after a while."""

    sleep_s: float = 0.05
    wake_s: float = 0.2
    store_s: float = 0.1
    commands: list[RankCommand] = field(default_factory=list)
    told: list[RungState] = field(default_factory=list)
    live: dict[int, bool] = field(default_factory=dict)
    """Requests that run, and whether they can be moved."""
    num_submitted: int = 0
    num_moved: int = 0
    is_leaving: bool = False
    is_asleep: bool = False
    num_wakes_to_fail: int = 0
    has_successor: bool = True

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ledger = CreditLedger(8, ttft_budget_s=10.0, step_budget_tokens=1000)
        self.ledger.set_demand(SOURCE, (0, 0, 0))
        self.emptying = Emptying(
            self.ledger, self.send, has_node_cache=True, can_hand_over=lambda: self.has_successor
        )
        self.keeper = RungKeeper(
            self.ledger,
            self.emptying,
            self.send,
            self.tell,
            hand_over_after_s=HAND_OVER_S,
            clock=self.loop.time,
        )

    @property
    def has_credit(self) -> bool:
        return self.ledger.num_granted > 0

    def ask_credit(self) -> None:
        self.ledger.set_demand(SOURCE, (0, 1, 0))
        if self.ledger.grants(LOAD):
            state = self.keeper.state
            assert state.rung is Rung.SERVING
            assert not state.is_moving
            assert not self.is_leaving

    def submit(self, duration_s: float, *, can_move: bool = True) -> None:
        """With a credit, as the step loop takes it."""
        self.num_submitted += 1
        number = self.num_submitted
        self.ledger.submitted(SOURCE, 3)
        self.ledger.taken(1)
        self.ledger.started(ServiceClass.STANDARD, 3)
        self.live[number] = can_move
        if self.is_leaving:
            self.move(number)
        else:
            self.loop.call_later(duration_s, self.end, number)

    def move(self, number: int) -> None:
        del self.live[number]
        self.num_moved += 1
        self.loop.call_later(STEP_S, self.ledger.finished, SOURCE, 1)

    def end(self, number: int) -> None:
        if number in self.live:
            del self.live[number]
            self.ledger.finished(SOURCE, 1)

    def tell(self, state: RungState) -> None:
        assert not self.told or state != self.told[-1], "the same is told twice"
        self.told.append(state)

    def send(self, command: RankCommand) -> None:
        self.commands.append(command)
        match command:
            case HandOver():
                self.is_leaving = True
                if not command.only_waiting:
                    for number in [n for n, can_move in self.live.items() if can_move]:
                        self.move(number)
            case Stay():
                assert not self.is_asleep
                self.is_leaving = False
            case StoreKept():
                self.loop.call_later(self.store_s, self.emptying.kept_stored, command.number)
            case Sleep():
                assert self.is_leaving
                assert not self.live, "requests are here"
                assert not self.is_asleep
                self.is_asleep = True
                self.loop.call_later(self.sleep_s, self.keeper.changed, RungChange(Rung.PARKED))
            case Wake():
                assert self.is_asleep
                self.loop.call_later(self.wake_s, self.finish_wake)

    def finish_wake(self) -> None:
        if self.num_wakes_to_fail > 0:
            self.num_wakes_to_fail -= 1
            self.keeper.changed(RungChange(Rung.PARKED, "no memory"))
            return
        self.is_asleep = self.is_leaving = False
        self.keeper.changed(RungChange(Rung.SERVING))

    async def settle(self, duration_s: float = 60.0) -> None:
        await asyncio.sleep(duration_s)
        assert not self.keeper.state.is_moving


def kinds(bench: Bench) -> list[type]:
    return [type(command) for command in bench.commands]


def places(bench: Bench) -> list[tuple[Rung, bool]]:
    return [(state.rung, state.is_moving) for state in bench.told]


def order(bench: Bench, rung: Rung, sequence: int, epoch: int = 1) -> None:
    bench.keeper.order(RungOrder(rung, epoch, sequence))


def test_a_way_down_and_up_is_told_and_timed() -> None:
    async def run() -> None:
        bench = Bench()
        for _ in range(3):  # of three gateways
            order(bench, Rung.PARKED, 1)
        await bench.settle()
        order(bench, Rung.SERVING, 2)
        await bench.settle()
        assert kinds(bench) == [HandOver, StoreKept, Sleep, Wake]
        assert places(bench) == [
            (Rung.SERVING, True),
            (Rung.PARKED, False),
            (Rung.PARKED, True),
            (Rung.SERVING, False),
        ]
        assert bench.keeper.state.sleep_s == pytest.approx(0.15)
        assert bench.keeper.state.wake_s == pytest.approx(0.2)
        counts = bench.keeper.counts
        assert (counts.num_sleeps, counts.num_wakes, counts.num_failed_wakes) == (1, 1, 0)
        bench.ask_credit()
        assert bench.has_credit

    run_in_virtual_time(run())


def test_requests_have_the_grace_to_end_and_those_that_cannot_move_as_long_as_they_take() -> None:
    async def run() -> None:
        bench = Bench()
        for duration_s, can_move in ((1.0, True), (50.0, True), (5.0, False)):
            bench.ask_credit()
            bench.submit(duration_s, can_move=can_move)
        order(bench, Rung.PARKED, 1)
        await asyncio.sleep(HAND_OVER_S + 0.2)
        assert bench.num_moved == 1
        assert len(bench.live) == 1
        await bench.settle()
        assert 5.0 < bench.keeper.state.sleep_s < 5.5
        assert bench.ledger.num_in_flight == 0

    run_in_virtual_time(run())


def test_requests_that_nobody_could_go_on_with_end_here() -> None:
    async def run() -> None:
        bench = Bench(has_successor=False)
        bench.ask_credit()
        bench.submit(50.0)
        order(bench, Rung.PARKED, 1)
        await bench.settle()
        assert bench.num_moved == 0
        assert kinds(bench) == [HandOver, StoreKept, Sleep]
        assert 50.0 < bench.keeper.state.sleep_s < 50.5

    run_in_virtual_time(run())


def test_once_somebody_can_go_on_with_them_requests_are_handed_over() -> None:
    async def run() -> None:
        bench = Bench(has_successor=False)
        bench.ask_credit()
        bench.submit(50.0)
        order(bench, Rung.PARKED, 1)
        await asyncio.sleep(HAND_OVER_S + 10)
        bench.has_successor = True
        await asyncio.sleep(0.1)
        assert bench.num_moved == 1
        assert kinds(bench)[0] == HandOver

    run_in_virtual_time(run())


def test_requests_of_who_leaves_wait_for_the_one_in_its_place() -> None:
    async def run() -> None:
        bench = Bench()
        bench.ask_credit()
        bench.submit(50.0)
        is_there = asyncio.Event()
        leaving = asyncio.create_task(
            bench.emptying.run(
                hand_over_after_s=HAND_OVER_S,
                is_off=lambda: False,
                has_replacement=is_there.is_set,
            )
        )
        await asyncio.sleep(HAND_OVER_S + 10)
        assert (bench.num_moved, kinds(bench)) == (0, [])
        is_there.set()
        await asyncio.sleep(0.1)
        assert bench.num_moved == 1
        assert await leaving

    run_in_virtual_time(run())


def test_credits_that_are_out_are_waited_for_a_moment_and_can_still_be_used_later() -> None:
    async def run() -> None:
        bench = Bench()
        bench.ask_credit()
        order(bench, Rung.PARKED, 1)
        await bench.settle()
        assert SETTLE_S < bench.keeper.state.sleep_s < SETTLE_S + 0.5
        bench.submit(1.0)
        assert bench.num_moved == 1

    run_in_virtual_time(run())


def test_an_order_to_wake_turns_back_who_waits_for_requests_or_for_the_node() -> None:
    async def run() -> None:
        bench = Bench(store_s=STORE_KEPT_LIMIT_S * 2)
        bench.ask_credit()
        bench.submit(1.0)
        order(bench, Rung.PARKED, 1)
        await asyncio.sleep(0.5)
        order(bench, Rung.SERVING, 2)
        await asyncio.sleep(0.1)
        assert kinds(bench) == [HandOver, Stay]
        order(bench, Rung.PARKED, 3)
        await asyncio.sleep(1.0)
        assert kinds(bench)[2:] == [HandOver, StoreKept]
        order(bench, Rung.SERVING, 4)
        await asyncio.sleep(0.1)
        assert kinds(bench)[4:] == [Stay]
        assert bench.told[-1] == RungState(Rung.SERVING)
        assert bench.keeper.counts.num_sleeps == 0

    run_in_virtual_time(run())


def test_what_was_cut_short_does_not_end_the_next_storing() -> None:
    async def run() -> None:
        bench = Bench(store_s=3.0)
        order(bench, Rung.PARKED, 1)
        await asyncio.sleep(1.0)
        order(bench, Rung.SERVING, 2)
        await asyncio.sleep(1.0)
        order(bench, Rung.PARKED, 3)
        await asyncio.sleep(1.5)  # the first one is done by now
        assert kinds(bench)[-1] is StoreKept
        await bench.settle()
        assert bench.keeper.state.sleep_s == pytest.approx(3.05)

    run_in_virtual_time(run())


def test_a_wake_without_memory_stays_parked_and_the_next_order_tries_again() -> None:
    async def run() -> None:
        bench = Bench(num_wakes_to_fail=2)
        order(bench, Rung.PARKED, 1)
        await bench.settle()
        for sequence, is_awake in ((2, False), (3, False), (4, True)):
            order(bench, Rung.SERVING, sequence)
            order(bench, Rung.SERVING, sequence)  # of another gateway
            await bench.settle()
            assert (bench.keeper.state.rung is Rung.SERVING) is is_awake
            bench.ask_credit()
            assert bench.has_credit is is_awake
        assert kinds(bench).count(Wake) == 3
        assert bench.keeper.counts.num_failed_wakes == 2
        assert bench.keeper.counts.num_wakes == 1

    run_in_virtual_time(run())


@pytest.mark.parametrize("epoch", [2, 2**64 - 1])
def test_an_epoch_of_which_nothing_comes_gives_way_to_an_earlier_one(epoch: int) -> None:
    async def run() -> None:
        bench = Bench()
        order(bench, Rung.PARKED, 2**64 - 1, epoch=epoch)
        await bench.settle(EPOCH_LAPSES_S)
        order(bench, Rung.SERVING, 1, epoch=1)
        await bench.settle(0.1)
        assert kinds(bench)[-1] is Sleep
        order(bench, Rung.SERVING, 1, epoch=epoch)  # late, of the same one
        assert kinds(bench)[-1] is Sleep
        order(bench, Rung.SERVING, 1, epoch=1)
        await bench.settle(1.0)
        assert kinds(bench)[-1] is Wake
        order(bench, Rung.PARKED, 1, epoch=1)
        await bench.settle(1.0)
        assert kinds(bench)[-1] is Wake, "it was obeyed already"
        order(bench, Rung.PARKED, 1, epoch=epoch)
        await bench.settle(1.0)
        assert kinds(bench)[-1] is Sleep

    run_in_virtual_time(run())


def test_no_order_counts_once_the_replica_leaves() -> None:
    async def run() -> None:
        bench = Bench()
        order(bench, Rung.PARKED, 1)
        bench.keeper.stop()
        order(bench, Rung.PARKED, 2)
        await asyncio.sleep(10)
        assert Sleep not in kinds(bench)
        await bench.keeper.close()
        await bench.keeper.close()

    run_in_virtual_time(run())


def test_one_that_leaves_amid_waking_grants_nothing() -> None:
    async def run() -> None:
        bench = Bench()
        order(bench, Rung.PARKED, 1)
        await bench.settle()
        order(bench, Rung.SERVING, 2)
        await asyncio.sleep(0.1)
        bench.keeper.stop()
        await asyncio.sleep(10)
        bench.ask_credit()
        assert not bench.has_credit
        assert places(bench)[-1] == (Rung.PARKED, True)

    run_in_virtual_time(run())


def test_a_rung_without_a_process_is_no_order() -> None:
    async def run() -> None:
        with pytest.raises(ProtocolError, match="can't be STAGED"):
            order(Bench(), Rung.STAGED, 1)

    run_in_virtual_time(run())


@dataclass(frozen=True)
class Order:
    rung: Rung
    epoch: int
    sequence: int


@dataclass(frozen=True)
class Request:
    duration_s: float
    can_move: bool


@dataclass(frozen=True)
class FailWakes:
    num: int


DELAYS = st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 7.0])
ACTIONS = st.lists(
    st.tuples(
        DELAYS,
        st.one_of(
            st.builds(
                Order,
                st.sampled_from([Rung.PARKED, Rung.SERVING]),
                st.integers(1, 2),
                st.integers(1, 30),
            ),
            st.builds(Request, st.sampled_from([0.0, 0.1, 1.0, 5.0, 20.0]), st.booleans()),
            st.builds(FailWakes, st.integers(1, 2)),
            st.just("ask"),
        ),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(
    actions=ACTIONS,
    sleep_s=st.sampled_from([0.0, 0.05, 1.0]),
    wake_s=st.sampled_from([0.0, 0.2, 3.0]),
    store_s=st.sampled_from([0.0, 0.1, STORE_KEPT_LIMIT_S * 2]),
)
def test_any_orders_end_where_the_newest_one_says_and_lose_no_request(
    actions: list[tuple[float, Order | Request | FailWakes | str]],
    sleep_s: float,
    wake_s: float,
    store_s: float,
) -> None:
    async def run() -> Bench:
        bench = Bench(sleep_s, wake_s, store_s)
        newest: tuple[int, int, Rung] = (0, 0, Rung.SERVING)
        for delay_s, action in actions:
            await asyncio.sleep(delay_s)
            match action:
                case Order():
                    order(bench, action.rung, action.sequence, action.epoch)
                    if (action.epoch, action.sequence) > newest[:2]:
                        newest = (action.epoch, action.sequence, action.rung)
                case Request():
                    if bench.has_credit:
                        bench.submit(action.duration_s, can_move=action.can_move)
                case FailWakes():
                    bench.num_wakes_to_fail = action.num
                case _:
                    bench.ask_credit()
        await bench.settle()
        bench.num_wakes_to_fail = 0
        order(bench, newest[2], 1, epoch=3)  # tries again if it failed
        await bench.settle()
        assert bench.keeper.state.rung is newest[2]
        assert bench.is_asleep is bench.is_leaving is (newest[2] is Rung.PARKED)
        assert bench.ledger.num_in_flight == len(bench.live) == 0
        bench.ledger.check_integrity()
        order(bench, Rung.SERVING, 2, epoch=3)
        await bench.settle()
        bench.ask_credit()
        assert bench.has_credit
        return bench

    bench = run_in_virtual_time(run())
    event(f"sleeps: {min(3, bench.keeper.counts.num_sleeps)}")
    event(f"turned back: {min(3, kinds(bench).count(Stay))}")
    event(f"moved: {min(3, bench.num_moved)}")
