"""When requests are sent, with a fake in place of the server."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from benchmarks.load import ClosedLoop, OpenLoop, poisson_arrivals_s, run_load
from benchmarks.timeline import RequestRecord


class FakeSend:
    """Answers after `answer_s`, or never; remembers who was in flight."""

    def __init__(self, answer_s: float | None) -> None:
        self.answer_s = answer_s
        self.intended_s: dict[int, float] = {}
        self.num_running = 0
        self.max_running = 0

    async def __call__(self, index: int, intended_s: float) -> RequestRecord:
        sent_s = time.perf_counter()
        self.intended_s[index] = intended_s
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            await asyncio.sleep(1e6 if self.answer_s is None else self.answer_s)
        finally:
            self.num_running -= 1
        return RequestRecord(intended_s, sent_s, time.perf_counter(), (), 200, 1, None)


def test_arrivals_are_repeatable_and_depend_on_the_seed() -> None:
    assert poisson_arrivals_s(5.0, 100, seed=1) == poisson_arrivals_s(5.0, 100, seed=1)
    assert poisson_arrivals_s(5.0, 100, seed=1) != poisson_arrivals_s(5.0, 100, seed=2)


def test_arrivals_are_poisson_at_the_rate() -> None:
    arrivals_s = poisson_arrivals_s(50.0, 20_001, seed=0)
    gaps_s = [after - before for before, after in pairwise(arrivals_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    variance = sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s)
    assert arrivals_s[0] == 0.0
    assert min(gaps_s) > 0.0
    assert mean_s == pytest.approx(1 / 50.0, rel=0.05)
    assert variance**0.5 == pytest.approx(mean_s, rel=0.05)  # exponential: deviation = mean


async def test_open_loop_does_not_wait_for_answers() -> None:
    all_sent = asyncio.Barrier(20)
    intended_s: dict[int, float] = {}

    async def send(index: int, at_s: float) -> RequestRecord:
        sent_s = time.perf_counter()
        intended_s[index] = at_s
        await all_sent.wait()  # no answer before every request is on its way
        return RequestRecord(at_s, sent_s, time.perf_counter(), (), 200, 1, None)

    outcome = await run_load(OpenLoop(1000.0, 20, timeout_s=10.0, seed=0), send)
    assert outcome.num_unfinished == 0
    offsets_s = [intended_s[index] - intended_s[0] for index in range(20)]
    assert offsets_s == pytest.approx(poisson_arrivals_s(1000.0, 20, seed=0))
    assert all(record.send_lag_s >= 0.0 for record in outcome.records)


async def test_closed_loop_keeps_exactly_its_concurrency_in_flight() -> None:
    send = FakeSend(answer_s=0.005)
    outcome = await run_load(ClosedLoop(3, 10, timeout_s=10.0), send)
    assert send.max_running == 3
    assert sorted(send.intended_s) == list(range(10))
    assert len(outcome.records) == 10
    # Ten requests, three at a time: four rounds.
    assert outcome.duration_s > 3.9 * 0.005


async def test_a_run_ends_at_its_timeout_and_counts_what_it_left() -> None:
    send = FakeSend(answer_s=None)
    outcome = await run_load(ClosedLoop(2, 10, timeout_s=0.05), send)
    assert outcome.num_unfinished == 10
    assert outcome.records == ()
    assert send.num_running == 0
    assert 0.05 <= outcome.duration_s < 5.0


async def test_an_open_loop_cut_short_counts_the_requests_never_sent() -> None:
    send = FakeSend(answer_s=0.0)
    outcome = await run_load(OpenLoop(0.001, 10, timeout_s=0.05, seed=0), send)
    assert len(outcome.records) == 1
    assert outcome.num_unfinished == 9


@pytest.mark.parametrize("is_open", [False, True])
async def test_turns_of_a_session_follow_each_other_and_sessions_overlap(is_open: bool) -> None:
    running: dict[int, int] = {}
    order: dict[int, list[int]] = {}
    max_sessions = 0

    async def send(index: int, at_s: float) -> RequestRecord:
        nonlocal max_sessions
        session = index // 3
        assert session not in running, "two turns of one session at once"
        running[session] = index
        max_sessions = max(max_sessions, len(running))
        order.setdefault(session, []).append(index)
        sent_s = time.perf_counter()
        await asyncio.sleep(0.01)
        del running[session]
        return RequestRecord(at_s, sent_s, time.perf_counter(), (), 200, 1, None)

    load = (
        OpenLoop(3000.0, 11, 10.0, seed=0, session_len=3, think_s=0.001)
        if is_open
        else ClosedLoop(2, 11, 10.0, session_len=3)
    )
    outcome = await run_load(load, send)
    assert len(outcome.records) == 11
    assert order == {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8], 3: [9, 10]}
    assert max_sessions == (4 if is_open else 2)
    assert all(record.send_lag_s < 0.2 for record in outcome.records)
