"""Credits: how many requests each gateway may send this engine.

The front owns them, since the step loop answers only between steps. Waiting requests stand in the
gateways; the engine takes only what it can start soon: a bounded number of requests, and no more
prompt tokens, less the share that the prefix cache usually holds, than it prefills within the TTFT
budget. Pure accounting: no I/O, no clock.

A credit's life: granted → used by a submit (now a request in flight) → gone when that finishes. Or
it is returned unused. A request in flight takes as many places as it has samples.

Classes: the step loop sends lower classes away for higher ones, so a class is held back only by
what goes before it: its own and higher classes, in places and in tokens. Whoever is sent away
waits here with nothing but its tokens, so all classes together may take as many places as there
are for each of them, and no more.
"""

from collections import deque
from dataclasses import dataclass, field

from engine.errors import CreditError
from engine.messages import LoadView, ServiceClass

_FIRST_MEAN_PROMPT_TOKENS = 128.0
"""Assumed until the first prompt comes."""
_MEAN_WEIGHT = 0.1
"""Of the newest value in a moving mean."""
_NUM_CLASSES = len(ServiceClass)


def _zeros() -> list[int]:
    return [0] * _NUM_CLASSES


@dataclass(slots=True)
class _Account:
    """What one gateway connection (a *source*) holds; lists are per class."""

    num_waiting: list[int] = field(default_factory=_zeros)
    num_granted: list[int] = field(default_factory=_zeros)
    """By the class whose demand they answer; the gateway may use them for any."""
    num_in_flight: list[int] = field(default_factory=_zeros)
    is_closed: bool = False

    def wants(self, service_class: int) -> bool:
        """Whether it has too few credits for what waits of this and of higher classes."""
        return sum(self.num_waiting[: service_class + 1]) > sum(self.num_granted)


class CreditLedger:
    """The only writer of credits. Sources are numbers that are never used again."""

    def __init__(
        self, max_num_places: int, *, ttft_budget_s: float, step_budget_tokens: int
    ) -> None:
        """``step_budget_tokens``: what one step computes at most; so much may always wait."""
        self._max_num_places = max_num_places
        self._ttft_budget_s = ttft_budget_s
        self._step_budget_tokens = step_budget_tokens
        self._accounts: dict[int, _Account] = {}
        self._rotations: list[deque[int]] = [deque() for _ in ServiceClass]
        self._is_granting = True
        self._num_granted = _zeros()
        self._num_in_flight = _zeros()
        self._untaken: deque[tuple[int, int]] = deque()
        """Class and prompt tokens of the requests that the step loop has not taken."""
        self._num_untaken_tokens = _zeros()
        self._num_unstarted_tokens = _zeros()
        """Of prompts that were taken and have no first token."""
        self._mean_prompt_tokens: float | None = None
        self._uncached_share = 1.0
        self._last_load = LoadView()

    @property
    def num_granted(self) -> int:
        """Credits that gateways hold unused."""
        return sum(self._num_granted)

    @property
    def num_in_flight(self) -> int:
        """Samples submitted and not finished, those of closed gateways included."""
        return sum(self._num_in_flight)

    def set_demand(self, source: int, num_waiting: tuple[int, int, int]) -> None:
        """So many requests of each class wait; the first call opens the source's account.

        Raises ``CreditError``.
        """
        if min(num_waiting) < 0:
            raise CreditError(f"a negative number of requests waits: {num_waiting}")
        self._account(source).num_waiting[:] = num_waiting

    def submitted(
        self,
        source: int,
        num_tokens: int,
        num_places: int = 1,
        service_class: ServiceClass = ServiceClass.STANDARD,
    ) -> None:
        """A request of ``num_tokens`` prompt tokens and ``num_places`` samples came.

        Raises ``CreditError``.
        """
        account = self._account(source)
        # The class's own credit; else the one that keeps out the fewest others.
        used = next(
            (c for c in (service_class, *reversed(ServiceClass)) if account.num_granted[c]), None
        )
        if used is None:
            raise CreditError("a request was submitted without a credit")
        account.num_granted[used] -= 1
        self._num_granted[used] -= 1
        account.num_waiting[service_class] = max(0, account.num_waiting[service_class] - 1)
        account.num_in_flight[service_class] += num_places
        self._num_in_flight[service_class] += num_places
        self._untaken.append((service_class, num_tokens))
        self._num_untaken_tokens[service_class] += num_tokens
        mean = self._mean_prompt_tokens
        self._mean_prompt_tokens = (
            num_tokens if mean is None else mean + _MEAN_WEIGHT * (num_tokens - mean)
        )

    def taken(self, num_submits: int) -> None:
        """The step loop took ``num_submits`` more requests: its load view counts them now."""
        for _ in range(num_submits):
            service_class, num_tokens = self._untaken.popleft()
            self._num_untaken_tokens[service_class] -= num_tokens
            self._num_unstarted_tokens[service_class] += num_tokens

    def started(self, service_class: ServiceClass, num_tokens: int) -> None:
        """A request that was taken has its first token, or ended without one."""
        self._num_unstarted_tokens[service_class] -= num_tokens
        assert self._num_unstarted_tokens[service_class] >= 0, "a request started twice"

    def finished(
        self, source: int, num_places: int, service_class: ServiceClass = ServiceClass.STANDARD
    ) -> None:
        """So many samples of ``source`` ended."""
        account = self._account(source)
        assert num_places <= account.num_in_flight[service_class]
        account.num_in_flight[service_class] -= num_places
        self._num_in_flight[service_class] -= num_places
        self._forget_if_done(source)

    def returned(self, source: int, num_credits: int) -> None:
        """Raises ``CreditError`` when ``source`` does not hold as many."""
        account = self._account(source)
        num_held = sum(account.num_granted)
        if not 0 <= num_credits <= num_held:
            raise CreditError(f"{num_credits} credits were returned, {num_held} are held")
        for service_class in reversed(ServiceClass):
            num_back = min(num_credits, account.num_granted[service_class])
            account.num_granted[service_class] -= num_back
            self._num_granted[service_class] -= num_back
            num_credits -= num_back

    def closed(self, source: int) -> None:
        """The connection is gone: its credits are free, its requests count until they finish."""
        account = self._account(source)
        for service_class, rotation in enumerate(self._rotations):
            rotation.remove(source)
            self._num_granted[service_class] -= account.num_granted[service_class]
        account.num_granted, account.num_waiting = _zeros(), _zeros()
        account.is_closed = True
        self._forget_if_done(source)

    def stop_granting(self) -> None:
        """From now on ``grants`` gives nothing: requests are to go elsewhere."""
        self._is_granting = False

    def resume_granting(self) -> None:
        self._is_granting = True

    def grants(self, load: LoadView) -> dict[int, int]:
        """New credits per source: highest class first, one by one in turn among equals. They count
        from here on.
        """
        self._learn_cache_hits(load)
        granted: dict[int, int] = {}
        for service_class in ServiceClass if self._is_granting else ():
            while self._has_room(service_class, load):
                source = self._next_wanting(service_class)
                if source is None:
                    break
                self._accounts[source].num_granted[service_class] += 1
                self._num_granted[service_class] += 1
                granted[source] = granted.get(source, 0) + 1
        return granted

    def check_integrity(self) -> None:
        """Sums agree with accounts. For tests."""
        accounts = self._accounts.values()
        for c in ServiceClass:
            assert self._num_granted[c] == sum(account.num_granted[c] for account in accounts)
            assert self._num_in_flight[c] == sum(account.num_in_flight[c] for account in accounts)
            assert self._num_untaken_tokens[c] == sum(n for other, n in self._untaken if other == c)
            assert set(self._rotations[c]) == {
                source for source, account in self._accounts.items() if not account.is_closed
            }
        for account in accounts:
            assert min(account.num_granted + account.num_in_flight + account.num_waiting) >= 0

    def _has_room(self, service_class: ServiceClass, load: LoadView) -> bool:
        end = service_class + 1
        num_granted = sum(self._num_granted[:end])
        if num_granted + sum(self._num_in_flight[:end]) >= self._max_num_places:
            return False
        # Credits may be used for other classes than asked for, so the sum needs a bound, too.
        if self.num_granted + self.num_in_flight >= self._max_num_places * _NUM_CLASSES:
            return False
        num_pending_tokens = self._num_tokens_before(end, load)
        if num_granted + num_pending_tokens == 0:
            return True  # a prompt longer than the whole budget must get in, too
        # Nobody knows yet how long the prompts of unused credits are: take the mean.
        mean = self._mean_prompt_tokens
        mean = _FIRST_MEAN_PROMPT_TOKENS if mean is None else mean
        num_expected_tokens = num_pending_tokens + (num_granted + 1) * mean * self._uncached_share
        # Steps with few prompt tokens in them make the measured speed look worse than it is.
        budget_tokens = max(
            self._step_budget_tokens, self._ttft_budget_s * load.prefill_tokens_per_s
        )
        return num_expected_tokens <= budget_tokens

    def _num_tokens_before(self, end: int, load: LoadView) -> float:
        """Prompt tokens that are computed before those of the last class below ``end``."""
        # The load view is exact, but of all classes; what did not start is at most that much.
        num_taken = min(load.pending_prefill_tokens, sum(self._num_unstarted_tokens[:end]))
        if end == _NUM_CLASSES:
            num_taken = load.pending_prefill_tokens
        return num_taken + sum(self._num_untaken_tokens[:end]) * self._uncached_share

    def _learn_cache_hits(self, load: LoadView) -> None:
        num_tokens = load.num_prompt_tokens - self._last_load.num_prompt_tokens
        if num_tokens > 0:
            num_cached = load.num_cached_prompt_tokens - self._last_load.num_cached_prompt_tokens
            share = 1 - num_cached / num_tokens
            self._uncached_share += _MEAN_WEIGHT * (share - self._uncached_share)
        self._last_load = load

    def _next_wanting(self, service_class: ServiceClass) -> int | None:
        rotation = self._rotations[service_class]
        for _ in range(len(rotation)):
            source = rotation[0]
            rotation.rotate(-1)
            if self._accounts[source].wants(service_class):
                return source
        return None

    def _forget_if_done(self, source: int) -> None:
        account = self._accounts[source]
        if account.is_closed and not any(account.num_in_flight):
            del self._accounts[source]

    def _account(self, source: int) -> _Account:
        account = self._accounts.get(source)
        if account is None:
            account = self._accounts[source] = _Account()
            for rotation in self._rotations:
                rotation.append(source)
        return account
