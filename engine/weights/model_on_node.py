"""What one node holds of one model, what is wanted of it, and what is to be done next.

Pure: it moves no byte, and time is an argument. Must not know how weights are brought, nor what
other models there are.
"""

from dataclasses import dataclass, replace

import msgspec

from cache_tiers.rung import Rung
from cache_tiers.weights.errors import WeightsError, WrongWeights
from cache_tiers.weights.messages import Origin, Stage, WeightsOrder, WeightsState
from engine.weights.leases import Leases

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0
_ORDER_LASTS_S = 600.0
"""Whoever still wants something says so again, as a plan does every few seconds."""
_RETRY_WRONG_S = 600.0
"""Asking again doesn't help before somebody has corrected the order or the source."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A whole and checked revision, in memory or on the disk."""

    source: str
    """That it was ordered from."""
    source_sha256: str
    weights_sha256: str
    folder: str
    num_bytes: int
    is_stale: bool = False
    """The source has something else by now."""

    def is_what(self, order: WeightsOrder) -> bool:
        """Whether ``order`` means these weights."""
        return (
            not self.is_stale
            and self.source == order.source
            and (order.source_sha256 or self.source_sha256).lower() == self.source_sha256
            and (order.weights_sha256 or self.weights_sha256).lower() == self.weights_sha256
        )


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a promotion came to."""

    rung: Rung
    copy: Copy
    origin: Origin
    stages: tuple[Stage, ...]
    failure: WeightsError | None = None
    """Why it isn't the rung that was wanted."""


class ModelOnNode:
    """Changed by its owner alone, in one thread."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.order: WeightsOrder | None = None
        """The latest one."""
        self.in_memory: Copy | None = None
        self.on_disk: Copy | None = None
        self.leases = Leases()
        self.used_s = 0.0
        """When somebody last wanted or used it."""
        self._ordered_s = 0.0
        self.start_stages: tuple[Stage, ...] = ()
        self._replaced: list[Copy] = []
        self._asked: dict[str, Rung] = {}
        self._promoting: WeightsOrder | None = None
        self._failure: WeightsError | None = None
        self._num_failures = 0
        self._retry_s = 0.0
        self._last: Promoted | None = None

    # What is wanted

    @property
    def wanted(self) -> Rung:
        """By the latest order, and by those who wait."""
        ordered = Rung.COLD if self.order is None else self.order.rung
        return min(max(ordered, *self._asked.values(), Rung.COLD), Rung.STAGED)

    @property
    def is_awaited(self) -> bool:
        return bool(self._asked)

    def give(self, order: WeightsOrder, now_s: float) -> None:
        """The order counts from now on; one for other weights forgives what went wrong before."""
        if self.order is None or not _mean_same(self.order, order):
            self._forget_failure()
        self.order = order
        if order.rung > Rung.COLD:
            self.used_s = self._ordered_s = now_s

    def ask(self, asker: str, order: WeightsOrder, now_s: float) -> None:
        """Somebody waits for ``order`` until ``stop_asking``; the standing order stays, unless it
        means other weights. What failed before is tried again for it, without a pause."""
        if self.order is None or not _mean_same(self.order, order):
            self.give(order, now_s)
        elif order.parents:
            self.order = msgspec.structs.replace(self.order, parents=order.parents)
        if self.reached(order) < order.rung and not isinstance(self._failure, WrongWeights):
            self._failure, self._retry_s = None, now_s
        self._asked[asker] = order.rung
        self.used_s = now_s

    def stop_asking(self, asker: str, now_s: float) -> None:
        self._asked.pop(asker, None)
        self.used_s = now_s

    # Who uses it

    @property
    def is_idle(self) -> bool:
        """Nothing is here or under way, and nobody wants it: it may be forgotten."""
        is_here = self.rung > Rung.COLD or bool(self._replaced) or self.is_promoting
        return not is_here and not self.is_used

    @property
    def is_used(self) -> bool:
        """Or wanted, on whatever rung."""
        return self.wanted > Rung.COLD or len(self.leases) > 0

    def keep(self, folder: str, until_s: float, now_s: float) -> None:
        """``folder`` stays until then, for who is about to lease it."""
        self.used_s = now_s
        self.leases.keep(folder, until_s)

    def lease(self, holder: str, until_s: float, now_s: float) -> str:
        """Keeps what is here until then. Returns its folder; empty where there is none."""
        self.used_s = now_s
        copy = self.in_memory or self.on_disk
        return self.leases.take(holder, "" if copy is None else copy.folder, until_s)

    def release(self, holder: str, now_s: float) -> None:
        """Fine when it holds nothing."""
        if self.leases.release(holder):
            self.used_s = now_s

    def expire(self, now_s: float) -> None:
        """Leases that nobody renewed are over."""
        if self.leases.expire(now_s):
            self.used_s = now_s

    # Up

    @property
    def is_promoting(self) -> bool:
        return self._promoting is not None

    @property
    def should_break_off(self) -> bool:
        """What is under way is no longer wanted at all."""
        if self._promoting is None or self.order is None:
            return False
        return not _mean_same(self._promoting, self.order) or self.wanted is Rung.COLD

    def next_promotion(self, now_s: float) -> Rung | None:
        """The rung to bring it to now; None: there is nothing to do, or it is under way."""
        if self.order is None or self._promoting is not None or now_s < self._retry_s:
            return None
        return self.wanted if self.reached(self.order) < self.wanted else None

    def begin(self) -> None:
        assert self._promoting is None
        assert self.order is not None
        self._promoting = self.order

    def break_off(self) -> None:
        """Nothing has come of it, and nobody wants it."""
        self._promoting = None

    def succeed(self, promoted: Promoted, now_s: float) -> None:
        self._promoting = None
        self._last = promoted
        if promoted.rung is Rung.STAGED:
            if self.in_memory is not None:
                self._replaced.append(self.in_memory)
            self.in_memory = promoted.copy
        else:
            self.on_disk = promoted.copy
        self.used_s = now_s
        if promoted.failure is None:
            self._forget_failure()
        else:
            self._note_failure(promoted.failure, now_s)

    def fail(self, error: WeightsError, now_s: float) -> None:
        """The old rung stays. Another attempt is due later, and later each time."""
        self._promoting = None
        self._note_failure(error, now_s)

    def lose(self, folder: str) -> None:
        """Somebody has removed or damaged it."""
        if self.in_memory is not None and self.in_memory.folder == folder:
            self.in_memory = None
        if self.on_disk is not None and self.on_disk.folder == folder:
            self.on_disk = None

    def outdate(self) -> None:
        """The source has other weights by now: what is here stays until those have come."""
        if self.in_memory is not None:
            self.in_memory = replace(self.in_memory, is_stale=True)
        if self.on_disk is not None:
            self.on_disk = replace(self.on_disk, is_stale=True)
        self._forget_failure()

    # Down

    def take_leaving(self) -> list[Copy]:
        """Copies in memory that go now: replaced ones, and what isn't wanted there; none that is
        leased."""
        leaving = [copy for copy in self._replaced if not self.leases.hold(copy.folder)]
        self._replaced = [copy for copy in self._replaced if self.leases.hold(copy.folder)]
        copy = self.in_memory
        if copy is not None and self.wanted < Rung.STAGED and not self.leases.hold(copy.folder):
            leaving.append(copy)
            self.in_memory = None
        return leaving

    def can_be_evicted(self, now_s: float, *, for_a_start: bool) -> bool:
        """Whether its memory may go to another model; ``for_a_start``: to one that a replica waits
        for, which comes before those that are merely ordered. An order that nobody repeats for ten
        minutes keeps nothing: who gave it may be gone."""
        copy = self.in_memory
        if copy is None or self.leases.hold(copy.folder) or self.is_awaited:
            return False
        is_old = now_s - self._ordered_s > _ORDER_LASTS_S
        return for_a_start or is_old or self.wanted < Rung.STAGED

    def evict(self) -> Copy:
        copy = self.in_memory
        assert copy is not None
        self.in_memory = None
        return copy

    # How it stands

    @property
    def rung(self) -> Rung:
        """Of what is here, be it what is ordered or not."""
        if self.in_memory is not None:
            return Rung.STAGED
        return Rung.COLD if self.on_disk is None else Rung.ON_DISK

    def reached(self, order: WeightsOrder) -> Rung:
        """Of the weights that ``order`` means."""
        if self.in_memory is not None and self.in_memory.is_what(order):
            return Rung.STAGED
        if self.on_disk is not None and self.on_disk.is_what(order):
            return Rung.ON_DISK
        return Rung.COLD

    def is_settled(self, order: WeightsOrder) -> bool:
        """Whether who waits for ``order`` gets no more than there is now."""
        if self.reached(order) >= min(order.rung, Rung.STAGED):
            return True
        if self.order is None or not _mean_same(self.order, order):
            return True  # somebody wants other weights by now
        return self._failure is not None and not self.is_promoting

    def state(self) -> WeightsState:
        """Of what is here, be it what is ordered or not."""
        return self._state_of(self.rung, self.in_memory or self.on_disk)

    def state_for(self, order: WeightsOrder) -> WeightsState:
        """As it counts for ``order``: other weights than those that it means count as none."""
        rung = self.reached(order)
        copies = {Rung.STAGED: self.in_memory, Rung.ON_DISK: self.on_disk}
        return self._state_of(rung, copies.get(rung))

    def _state_of(self, rung: Rung, copy: Copy | None) -> WeightsState:
        return WeightsState(
            model=self.model,
            rung=rung,
            wanted=self.wanted,
            revision="" if copy is None else copy.weights_sha256,
            folder="" if copy is None else copy.folder,
            num_bytes=0 if copy is None else copy.num_bytes,
            origin="" if self._last is None else self._last.origin,
            stages=() if self._last is None else self._last.stages,
            start_stages=self.start_stages,
            num_leases=len(self.leases),
            failure=None if self._failure is None else str(self._failure),
        )

    def _note_failure(self, error: WeightsError, now_s: float) -> None:
        self._failure = error
        later_s = min(_FIRST_RETRY_S * 2**self._num_failures, _LONGEST_RETRY_S)
        self._retry_s = now_s + (_RETRY_WRONG_S if isinstance(error, WrongWeights) else later_s)
        self._num_failures = min(self._num_failures + 1, 16)

    def _forget_failure(self) -> None:
        self._failure = None
        self._num_failures = 0
        self._retry_s = 0.0


def _mean_same(one: WeightsOrder, other: WeightsOrder) -> bool:
    """Whether both mean the same weights, on whatever rung and from whomever."""
    return (one.source, one.source_sha256, one.weights_sha256) == (
        other.source,
        other.source_sha256,
        other.weights_sha256,
    )
