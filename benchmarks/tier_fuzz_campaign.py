"""Asks engines with tiers and one without the same, while all goes wrong that can; compares.

Must not know how engines and nodes are made.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from benchmarks.tier_fuzz_engines import FuzzEngine
from benchmarks.tier_fuzz_nodes import FuzzNode
from benchmarks.tier_fuzz_talk import Ask, Talks
from engine.messages import EngineRequest, FinishReason, TokenDelta

_MAX_BESIDE = 4
"""Requests at a time."""
_MAX_ROUND_S = 60.0
"""Longer takes only what hangs."""
_CONNECT_S = 20.0
_PATIENCE_S = 3.0
_ABORT_SHARE = 0.15
_PEER_SHARE = 0.5
_EVENT_SHARE = 0.06
"""Of the steps something happens after them."""
_WAITING_EVENT_SHARE = 0.005
"""Of the moments in which nothing came."""
_MAX_DESCRIPTIONS = 10
_CYCLES_PER_LINE = 500
"""Of progress on standard output."""


@dataclass(slots=True)
class Report:
    """What came of it."""

    num_cycles: int = 0
    """Requests that were asked of an engine with tiers."""
    num_tokens: int = 0
    """That were compared."""
    num_mismatched: int = 0
    num_errors: int = 0
    """Requests that ended as they should not."""
    failures: list[str] = field(default_factory=list)
    """The first ones, in words."""
    events: Counter[str] = field(default_factory=Counter)
    restored_tokens: Counter[str] = field(default_factory=Counter)
    """By the tier where they were found."""
    unsound_blocks: int = 0
    """That engines found and did not use."""

    def fail(self, words: str) -> None:
        if len(self.failures) < _MAX_DESCRIPTIONS:
            self.failures.append(words)


@dataclass(slots=True)
class Side:
    """An engine and its node."""

    engine: FuzzEngine
    node: FuzzNode
    num_cycles_without_node: int = 0
    """Until it is started again."""


@dataclass(slots=True)
class _Open:
    """A request under way at one side."""

    request: EngineRequest
    expected: list[int]
    side: Side
    abort_after: int | None
    """Tokens of sample 0; None: it goes on to its end."""
    num_taken: Counter[int] = field(default_factory=Counter)
    """By sample."""
    num_open: int = 0
    is_aborted: bool = False


class Campaign:
    """Call order: ``run`` once, between ``start`` and ``close`` of all engines."""

    def __init__(
        self,
        reference: FuzzEngine,
        sides: Sequence[Side],
        draw: random.Random,
        *,
        event_weights: dict[str, float],
        num_talks: int = 80,
    ) -> None:
        """``event_weights``: how likely each of the things is that may happen to a side: methods of
        this class without their underscore.
        """
        self._reference = reference
        self._sides = sides
        self._draw = draw
        self._talks = Talks(draw, num_talks)
        self._event_names = list(event_weights)
        self._event_weights = list(event_weights.values())
        self._open: dict[str, _Open] = {}
        self.report = Report()

    async def run(self, num_cycles: int) -> Report:
        """Until so many requests have been asked and answered."""
        next_line = _CYCLES_PER_LINE
        while self.report.num_cycles < num_cycles:
            if self.report.num_cycles >= next_line:
                next_line += _CYCLES_PER_LINE
                print(self.report, flush=True)
            asks = self._talks.ask(self._draw.randint(1, _MAX_BESIDE))
            expected = await self._answers([ask.request for ask in asks])
            await self._round(asks, expected)
            for ask in asks:
                ask.talk.token_ids += expected[ask.request.request_id]
        for side in self._sides:
            self._count(side)
        return self.report

    async def _answers(self, requests: list[EngineRequest]) -> dict[str, list[int]]:
        """Without tiers."""
        answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
        num_open = len(requests)
        for request in requests:
            plain = msgspec.structs.replace(request, num_samples=1, breakpoints=[])
            self._reference.submit(plain)
        while num_open:
            for delta in await self._reference.deltas():
                assert delta.error is None, delta.error
                answers[delta.request_id] += delta.token_ids
                num_open -= delta.finish_reason is not None
        return answers

    async def _round(self, asks: list[Ask], expected: dict[str, list[int]]) -> None:
        """Some requests side by side, begun at random moments."""
        deadline_s = time.monotonic() + _MAX_ROUND_S
        waiting = asks[:]
        while waiting or self._open:
            if waiting and (not self._open or self._draw.random() < 0.3):
                ask = waiting.pop()
                self._submit(ask.request, expected[ask.request.request_id])
            share = _EVENT_SHARE if await self._turn() else _WAITING_EVENT_SHARE
            if self._draw.random() < share:
                await self._disturb()
            if time.monotonic() > deadline_s:
                self.report.num_errors += 1
                self.report.fail(f"{sorted(self._open)} hang")
                return

    async def _turn(self) -> bool:
        """Whether anything came."""
        num_deltas = 0
        for side in self._sides:
            side.node.check()
            deltas = await side.engine.deltas()
            num_deltas += len(deltas)
            for delta in deltas:
                self._take(delta)
        return num_deltas > 0

    def _submit(self, request: EngineRequest, expected: list[int]) -> None:
        draw = self._draw
        side = draw.choice(self._sides)
        self._revive(side)
        others = [other.node.address for other in self._sides if other is not side]
        if others and draw.random() < _PEER_SHARE:
            request = msgspec.structs.replace(request, peer=draw.choice(others))
        abort_after = draw.randint(0, len(expected)) if draw.random() < _ABORT_SHARE else None
        self._open[request.request_id] = _Open(
            request, expected, side, abort_after, num_open=request.num_samples
        )
        self.report.num_cycles += 1
        side.engine.submit(request)
        if abort_after == 0 and draw.random() < 0.5:
            self._abort(self._open[request.request_id])

    def _take(self, delta: TokenDelta) -> None:
        open_ = self._open.get(delta.request_id)
        if open_ is None:
            return  # of an engine's earlier life
        if delta.error is not None:
            self._wrong(open_, f"failed: {delta.error}")
        begin = open_.num_taken[delta.index]
        open_.num_taken[delta.index] += len(delta.token_ids)
        wanted = open_.expected[begin : begin + len(delta.token_ids)]
        self.report.num_tokens += len(delta.token_ids)
        if wanted != delta.token_ids:
            self.report.num_mismatched += max(1, num_different(delta.token_ids, wanted))
            self._wrong(open_, f"answers {delta.token_ids} at {begin} instead of {wanted}")
        if delta.finish_reason is not None:
            self._end(open_, delta)
        elif open_.abort_after is not None and open_.num_taken[0] >= open_.abort_after:
            self._abort(open_)

    def _end(self, open_: _Open, delta: TokenDelta) -> None:
        request_id = open_.request.request_id
        if delta.finish_reason is FinishReason.ABORT and open_.is_aborted:
            self.report.events["aborted"] += 1
        elif delta.finish_reason is not FinishReason.LENGTH:
            self._wrong(open_, f"ended by {delta.finish_reason}")
        elif open_.num_taken[delta.index] != len(open_.expected):
            self._wrong(open_, f"ended after {open_.num_taken[delta.index]} tokens")
        if delta.usage is not None and delta.usage.restored is not None:
            for name in ("host", "disk", "peer", "object_store"):
                self.report.restored_tokens[name] += getattr(delta.usage.restored, name)
        open_.num_open -= 1
        if open_.num_open == 0:
            del self._open[request_id]

    def _abort(self, open_: _Open) -> None:
        if not open_.is_aborted:
            open_.is_aborted = True
            open_.side.engine.abort(open_.request.request_id)

    def _wrong(self, open_: _Open, words: str) -> None:
        self.report.num_errors += 1
        self.report.fail(f"{open_.request.request_id} (cycle {self.report.num_cycles}) {words}")

    async def _disturb(self) -> None:
        [name] = self._draw.choices(self._event_names, self._event_weights)
        side = self._draw.choice(self._sides)
        self.report.events[name] += 1
        match name:
            case "flip_in_arena":
                side.node.flip_in_arena()
            case "flip_on_disk":
                side.node.flip_on_disk()
            case "disk_full":
                side.node.fill_disk()
            case "node_frozen":
                side.node.pause()
            case "node_killed":
                await self._kill_node(side)
            case "engine_killed" | "engine_closed":
                await self._restart(side, is_killed=name == "engine_killed")
            case "stored_all":
                side.engine.store_kept()
            case _:
                raise AssertionError(name)

    async def _kill_node(self, side: Side) -> None:
        """It comes back at once, or a while later."""
        side.node.kill()
        if self._draw.random() < 0.5:
            side.node.flip_on_disk()
        side.num_cycles_without_node = self._draw.choice((0, 0, 0, 10))
        if side.num_cycles_without_node == 0:
            side.node.start()
            await self._wait_connected(side)

    async def _wait_connected(self, side: Side) -> None:
        """Else most requests would come while the engine has not tried again yet: of a node that
        was lost often it tries ever more rarely, but at its start at once.
        """
        if await self._is_connected(side, _PATIENCE_S):
            return
        await self._restart(side, is_killed=False)
        if not await self._is_connected(side, _CONNECT_S):
            self.report.num_errors += 1
            self.report.fail(f"an engine found no node within {_CONNECT_S:g} s of its start")

    async def _is_connected(self, side: Side, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not side.engine.stats.is_connected and time.monotonic() < deadline_s:
            side.engine.store_kept()  # and say how it is: an idle group says nothing
            await self._turn()
        return side.engine.stats.is_connected

    def _revive(self, side: Side) -> None:
        if not side.node.is_running:
            side.num_cycles_without_node -= 1
            if side.num_cycles_without_node <= 0:
                side.node.start()

    async def _restart(self, side: Side, *, is_killed: bool) -> None:
        """What it was asked is lost."""
        side.node.resume()  # else the new engine would wait for it
        self._count(side)
        await side.engine.close(is_killed=is_killed)
        self._open = {name: each for name, each in self._open.items() if each.side is not side}
        await side.engine.start()

    def _count(self, side: Side) -> None:
        """What its engine knows ends with it."""
        stats = side.engine.stats
        self.report.unsound_blocks += sum(stats.num_failed_blocks.values())
        self.report.events["fetches_timed_out"] += stats.num_timeouts
        self.report.events["blocks_recomputed_to_compare"] += stats.num_checks
        self.report.events["of_those_different"] += stats.num_differing


def num_different(token_ids: Sequence[int], wanted: Sequence[int]) -> int:
    """Of those that both have."""
    return sum(a != b for a, b in zip(token_ids, wanted, strict=False))
