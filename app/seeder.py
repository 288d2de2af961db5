"""Brings the hottest prefixes to engines that lack them: to one that joins or wakes before the
router counts it, and to those that stay when the only holder leaves or goes to sleep.

A seed is a request for no token, of the lowest class, that nobody pays for. Must not know what
requests wait for, nor how a submitted one ends.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from app.errors import ApiError
from app.fleet import Fleet
from app.hot_prefixes import HotPrefix
from app.member import Member
from app.queue import Job, WaitingQueue
from engine.messages import FinishReason, SamplingParams, ServiceClass, TokenDelta

MAX_SEEDING_S = 2.0
"""An engine counts after so long, whatever is missing; and so much work is given to it."""
HURRY_WAIT_S = 0.25
"""Once a request has waited so long for the others, a new engine counts at once."""
MAX_SEEDS = 16
"""Per engine at a time."""
_SEED_TIMEOUT_S = 10.0
_LOOK_S = 0.05


@dataclass(slots=True, eq=False)
class _SeedAnswer:
    """Where a seed's result goes: implements ``app.queue.Answer``."""

    done: Callable[[bool], None]
    """Whether the prefix is there now."""
    is_missing_text: bool = False
    """Nobody reads it: it does not go on elsewhere."""
    can_restart: bool = False

    def restart(self) -> None:
        raise AssertionError("a seed does not start over")

    def on_delta(self, delta: TokenDelta) -> None:
        if delta.finish_reason is not None:
            self.done(delta.finish_reason in (FinishReason.LENGTH, FinishReason.STOP))

    def fail(self, error: ApiError) -> None:
        self.done(False)


@dataclass(slots=True, eq=False)
class _Seeding:
    """Of an engine that the router does not count yet."""

    deadline_s: float
    missing: list[HotPrefix] | None = None
    """None until its snapshot is here."""


@dataclass(slots=True, eq=False)
class _Lane:
    """An engine's seeds that have no credit yet."""

    member: Member
    jobs: deque[Job] = field(default_factory=deque)


_NOBODY = _SeedAnswer(lambda _: None)


class Seeder:
    """Of one model's engines."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Callable[[], float],
        *,
        submit: Callable[[Member, Job], None],
        announce: Callable[[Member], None],
        counted: Callable[[], None],
        oldest_wait_s: Callable[[], float],
    ) -> None:
        """``submit`` uses a credit of the member; ``announce``: another number of seeds waits for
        it; ``counted``: a member takes requests from now on.
        """
        self.submits = True
        """Else another gateway does, and this one looks on."""
        self.num_seeded = 0
        """Prefixes that were brought to an engine, since the start."""
        self._fleet = fleet
        self._clock = clock
        self._submit = submit
        self._announce = announce
        self._counted = counted
        self._oldest_wait_s = oldest_wait_s
        self._seedings: dict[Member, _Seeding] = {}
        self._lanes: dict[Member, _Lane] = {}
        self._handle: asyncio.Handle | None = None

    def begin(self, member: Member, *, has_snapshot: bool) -> None:
        """``member`` joined, or is awake with an empty cache: if there is something to seed and
        others serve meanwhile, the router counts it later.
        """
        self._seedings.pop(member, None)
        member.is_seeded = True
        if not self._hot(member) or self._is_needed(member):
            return
        member.is_seeded = False
        self._seedings[member] = _Seeding(self._clock() + MAX_SEEDING_S)
        if has_snapshot:
            self.see_snapshot(member)
        self._look_later()

    def see_snapshot(self, member: Member) -> None:
        """All that ``member`` holds is known now."""
        seeding = self._seedings.get(member)
        if seeding is None or seeding.missing is not None:
            return
        seeding.missing = []
        left_s = MAX_SEEDING_S
        for prefix in self._hot(member):
            if self._holds(member, prefix) or len(seeding.missing) == MAX_SEEDS:
                continue
            job = self._seed(prefix)
            cost_s = self._fleet.expected_prefill_s(member, job)
            if cost_s <= left_s:
                left_s -= cost_s
                seeding.missing.append(prefix)
                self._send(member, job)
        self.look()

    def rescue(self, member: Member) -> None:
        """``member`` leaves or goes to sleep: what only it holds is to live on."""
        if not self.submits:
            return
        left_s: dict[Member, float] = {}
        staying = [other for other in self._fleet if other is not member and other.is_accepting]
        for prefix in self._hot(member)[:MAX_SEEDS] if staying else ():
            is_elsewhere = any(self._holds(other, prefix) for other in staying)
            if is_elsewhere or not self._holds(member, prefix):
                continue
            job = self._seed(prefix)
            heir = self._fleet.choose(job, WaitingQueue())
            if heir is None:
                continue
            cost_s = self._fleet.expected_prefill_s(heir, job)
            if cost_s <= left_s.setdefault(heir, MAX_SEEDING_S):
                left_s[heir] -= cost_s
                self._send(heir, job)

    def use_credits(self, member: Member) -> None:
        """Those that no request of a client wants."""
        lane = self._lanes.get(member)
        while lane is not None and lane.jobs and self._can_submit(member):
            job = lane.jobs.popleft()
            member.num_seeds_waiting -= 1
            self._submit(member, job)
        self._forget_if_empty(member)

    def look(self) -> None:
        """Something may have changed: count who is ready, or needed."""
        now_s = self._clock()
        for member, seeding in list(self._seedings.items()):
            missing = seeding.missing
            if missing is not None:
                missing[:] = [prefix for prefix in missing if not self._holds(member, prefix)]
            is_done = missing is not None and not missing
            is_late = now_s >= seeding.deadline_s or not member.is_accepting
            if is_done or is_late or self._is_needed(member):
                del self._seedings[member]
                member.is_seeded = True
                self._counted()
        for lane in list(self._lanes.values()):
            while lane.jobs and now_s >= lane.jobs[0].deadline_s:
                lane.jobs.popleft()
                lane.member.num_seeds_waiting -= 1
            self._announce(lane.member)
            self._forget_if_empty(lane.member)

    def forget(self, member: Member) -> None:
        """It is lost, leaves, or sleeps: no seed goes there."""
        self._seedings.pop(member, None)
        member.is_seeded = True
        if self._lanes.pop(member, None) is not None:
            member.num_seeds_waiting = 0
            self._announce(member)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._seedings.clear()
        self._lanes.clear()

    def _hot(self, member: Member) -> list[HotPrefix]:
        card = member.client.card
        return [
            prefix
            for prefix in self._fleet.hottest_prefixes(member)
            if prefix.card_root_key == card.root_key
            and prefix.num_tokens <= card.max_request_tokens
        ]

    def _holds(self, member: Member, prefix: HotPrefix) -> bool:
        """By its own words."""
        keys = prefix.index_keys
        return self._fleet.index.num_confirmed(member.engine_id, keys) >= len(keys)

    def _is_needed(self, member: Member) -> bool:
        root_key = member.client.card.root_key
        serving = [
            other
            for other in self._fleet
            if other is not member
            and other.is_accepting
            and other.is_seeded
            and other.client.card.root_key == root_key
        ]
        return not serving or self._oldest_wait_s() >= HURRY_WAIT_S

    def _seed(self, prefix: HotPrefix) -> Job:
        now_s = self._clock()
        return Job(
            request_id=f"seed-{secrets.token_hex(12)}",
            prompt=prefix.prompt,
            sampling=SamplingParams(max_tokens=0, temperature=0.0),
            answer=_NOBODY,
            arrived_s=now_s,
            deadline_s=now_s + _SEED_TIMEOUT_S,
            service_class=ServiceClass.BATCH,
            is_seed=True,
        )

    def _send(self, member: Member, job: Job) -> None:
        if not self.submits:
            return
        job.answer = _SeedAnswer(partial(self._note_end, member, job))
        self._lanes.setdefault(member, _Lane(member)).jobs.append(job)
        member.num_seeds_waiting += 1
        self.use_credits(member)
        self._announce(member)
        self._look_later()

    def _note_end(self, member: Member, job: Job, is_there: bool) -> None:
        self.num_seeded += is_there
        seeding = self._seedings.get(member)
        if seeding is not None and seeding.missing:
            last_key = job.prompt.block_keys[-1]
            seeding.missing = [p for p in seeding.missing if p.block_keys[-1] != last_key]
            self._look_soon()

    def _can_submit(self, member: Member) -> bool:
        return member.is_accepting and member.client.num_credits > 0

    def _forget_if_empty(self, member: Member) -> None:
        lane = self._lanes.get(member)
        if lane is not None and not lane.jobs:
            del self._lanes[member]

    def _look_soon(self) -> None:
        """After what calls this has done its part."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def _look_later(self) -> None:
        if self._handle is None and (self._seedings or self._lanes):
            self._handle = asyncio.get_running_loop().call_later(_LOOK_S, self._tick)

    def _tick(self) -> None:
        self._handle = None
        self.look()
        self._look_later()
