"""Credits: how many requests each gateway may send this engine.

The front owns them, since the step loop answers only between steps. Waiting requests stand in the
gateways; the engine takes only what it can start soon: a bounded number of requests, and no more
prompt tokens, less the share that the prefix cache usually holds, than it prefills within the TTFT
budget. Pure accounting: no I/O, no clock.

A credit's life: granted → used by a submit (now a request in flight) → gone when that finishes. Or
it is returned unused. A request in flight takes as many places as it has samples.
"""

from collections import deque
from dataclasses import dataclass

from engine.errors import CreditError
from engine.messages import LoadView

_FIRST_MEAN_PROMPT_TOKENS = 128.0
"""Assumed until the first prompt comes."""
_MEAN_WEIGHT = 0.1
"""Of the newest value in a moving mean."""


@dataclass(slots=True)
class _Account:
    """What one gateway connection (a *source*) holds."""

    num_waiting: int = 0
    num_granted: int = 0
    num_in_flight: int = 0
    is_closed: bool = False

    @property
    def is_wanting(self) -> bool:
        return self.num_waiting > self.num_granted


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
        self._rotation: deque[int] = deque()
        self._is_granting = True
        self._num_granted = 0
        self._num_in_flight = 0
        self._untaken_tokens: deque[int] = deque()
        self._num_untaken_tokens = 0
        self._mean_prompt_tokens: float | None = None
        self._uncached_share = 1.0
        self._last_load = LoadView()

    @property
    def num_granted(self) -> int:
        """Credits that gateways hold unused."""
        return self._num_granted

    @property
    def num_in_flight(self) -> int:
        """Samples submitted and not finished, those of closed gateways included."""
        return self._num_in_flight

    def set_demand(self, source: int, num_waiting: int) -> None:
        """``num_waiting`` requests of ``source`` wait; the first call opens its account."""
        self._account(source).num_waiting = num_waiting

    def submitted(self, source: int, num_tokens: int, num_places: int = 1) -> None:
        """A request of ``num_tokens`` prompt tokens and ``num_places`` samples came.

        Raises ``CreditError``.
        """
        account = self._account(source)
        if account.num_granted == 0:
            raise CreditError("a request was submitted without a credit")
        account.num_granted -= 1
        account.num_waiting = max(0, account.num_waiting - 1)
        account.num_in_flight += num_places
        self._num_granted -= 1
        self._num_in_flight += num_places
        self._untaken_tokens.append(num_tokens)
        self._num_untaken_tokens += num_tokens
        mean = self._mean_prompt_tokens
        self._mean_prompt_tokens = (
            num_tokens if mean is None else mean + _MEAN_WEIGHT * (num_tokens - mean)
        )

    def taken(self, num_submits: int) -> None:
        """The step loop took ``num_submits`` more requests: its load view counts them now."""
        for _ in range(num_submits):
            self._num_untaken_tokens -= self._untaken_tokens.popleft()

    def finished(self, source: int, num_places: int) -> None:
        """So many samples of ``source`` ended."""
        account = self._account(source)
        assert num_places <= account.num_in_flight
        account.num_in_flight -= num_places
        self._num_in_flight -= num_places
        if account.is_closed and account.num_in_flight == 0:
            del self._accounts[source]

    def returned(self, source: int, num_credits: int) -> None:
        """Raises ``CreditError`` when ``source`` does not hold as many."""
        account = self._account(source)
        if not 0 <= num_credits <= account.num_granted:
            raise CreditError(
                f"{num_credits} credits were returned, {account.num_granted} are held"
            )
        account.num_granted -= num_credits
        self._num_granted -= num_credits

    def closed(self, source: int) -> None:
        """The connection is gone: its credits are free, its requests count until they finish."""
        account = self._account(source)
        self._rotation.remove(source)
        self._num_granted -= account.num_granted
        account.num_granted = account.num_waiting = 0
        account.is_closed = True
        if account.num_in_flight == 0:
            del self._accounts[source]

    def stop_granting(self) -> None:
        """From now on ``grants`` gives nothing; for a drain."""
        self._is_granting = False

    def grants(self, load: LoadView) -> dict[int, int]:
        """New credits per source, given out one by one in turn; they count from here on."""
        self._learn_cache_hits(load)
        granted: dict[int, int] = {}
        while self._is_granting and self._has_room(load):
            source = self._next_wanting()
            if source is None:
                break
            self._accounts[source].num_granted += 1
            self._num_granted += 1
            granted[source] = granted.get(source, 0) + 1
        return granted

    def check_integrity(self) -> None:
        """Sums agree with accounts. For tests."""
        accounts = self._accounts.values()
        assert self._num_granted == sum(account.num_granted for account in accounts)
        assert self._num_in_flight == sum(account.num_in_flight for account in accounts)
        assert self._num_untaken_tokens == sum(self._untaken_tokens)
        assert set(self._rotation) == {
            source for source, account in self._accounts.items() if not account.is_closed
        }
        assert all(account.num_granted >= 0 for account in accounts)
        assert all(account.num_in_flight >= 0 for account in accounts)

    def _has_room(self, load: LoadView) -> bool:
        if self._num_granted + self._num_in_flight >= self._max_num_places:
            return False
        if self._num_granted + self._num_untaken_tokens + load.pending_prefill_tokens == 0:
            return True  # a prompt longer than the whole budget must get in, too
        # Nobody knows yet how long the prompts of unused credits are: take the mean.
        mean = self._mean_prompt_tokens
        mean = _FIRST_MEAN_PROMPT_TOKENS if mean is None else mean
        num_coming_tokens = self._num_untaken_tokens + (self._num_granted + 1) * mean
        num_expected_tokens = load.pending_prefill_tokens + num_coming_tokens * self._uncached_share
        # Steps with few prompt tokens in them make the measured speed look worse than it is.
        budget_tokens = max(
            self._step_budget_tokens, self._ttft_budget_s * load.prefill_tokens_per_s
        )
        return num_expected_tokens <= budget_tokens

    def _learn_cache_hits(self, load: LoadView) -> None:
        num_tokens = load.num_prompt_tokens - self._last_load.num_prompt_tokens
        if num_tokens > 0:
            num_cached = load.num_cached_prompt_tokens - self._last_load.num_cached_prompt_tokens
            share = 1 - num_cached / num_tokens
            self._uncached_share += _MEAN_WEIGHT * (share - self._uncached_share)
        self._last_load = load

    def _next_wanting(self) -> int | None:
        for _ in range(len(self._rotation)):
            source = self._rotation[0]
            self._rotation.rotate(-1)
            if self._accounts[source].is_wanting:
                return source
        return None

    def _account(self, source: int) -> _Account:
        account = self._accounts.get(source)
        if account is None:
            account = self._accounts[source] = _Account()
            self._rotation.append(source)
        return account
