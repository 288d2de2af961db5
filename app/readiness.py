"""Whether engines take requests of one model, and how long it takes until one does.

A fleet that was lost a moment ago comes back, usually after as long as it did before: requests wait
for that. One that the autoscaler let go comes back when it says, or as soon as somebody asks for
it; one that sleeps as soon as it is awake. One that was never there has no tokenizer yet.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from app.errors import ModelLoadingError
from app.fleet import Fleet
from app.scale_orders import LastOrders
from engine.messages import ModelCard

MAX_CONNECTING_S = 5.0
"""Wait for a first engine that discovery named; a large tokenizer takes about one second."""

FIRST_ABSENCE_S = 15.0
"""How long a fleet is expected to be away, until it was once: as an engine on a CPU takes to start.
"""
_WEIGHT = 0.5
"""Of the newest absence; there are few."""

_ORDER_S = 1.0
"""Until the autoscaler has heard of who waits, and its answer is here."""


class Readiness:
    """Of one model's fleet; told of every change in it."""

    def __init__(
        self,
        model: str,
        fleet: Fleet,
        orders: LastOrders,
        clock: Callable[[], float],
        *,
        max_connecting_s: float = MAX_CONNECTING_S,
    ) -> None:
        self.is_connecting = False
        """Replicas are known; those that are not connected yet will be in a moment."""
        self._model = model
        self._fleet = fleet
        self._orders = orders
        self._clock = clock
        self._max_connecting_s = max_connecting_s
        self._changed = asyncio.Event()
        self._last_card: ModelCard | None = None
        self._lost_s: float | None = None
        """Since when no engine takes requests, of those that there were."""
        self._wanted_s: float | None = None
        """Since when somebody has asked for one meanwhile."""
        self._mean_absence_s: float | None = None

    @property
    def card(self) -> ModelCard | None:
        """Of the engine with the most room, among those that take requests; None without any.

        While weights are replaced, of those that most of these engines have.
        """
        return _most_common([member.client.card for member in self._fleet if member.is_accepting])

    async def ready_card(self, max_wait_s: float) -> ModelCard:
        """As ``card``, after a moment if a first engine is being connected, and within
        ``max_wait_s`` if the autoscaler promises one; of a fleet that was lost, as it was last.

        Raises ``ModelLoadingError`` if there was none and none comes.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while self.card is None and self._last_card is None:
            left_s = begun_s + self._first_wait_s(max_wait_s) - loop.time()
            if left_s <= 0:
                raise ModelLoadingError(self._model, self.next_ready_s)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
        card = self.card or self._last_card
        assert card is not None, "the loop ends with one"
        return card

    def note_change(self) -> None:
        """An engine came, leaves, is lost, or stands on another rung."""
        card = self.card
        if card is not None:
            self._last_card = card
            self._end_absence()
        else:
            asleep = [member.client.card for member in self._fleet if not member.is_leaving]
            self._last_card = _most_common(asleep) or self._last_card
            if self._last_card is not None and self._lost_s is None:
                self._lost_s = self._clock()
        self._changed.set()

    def note_orders(self) -> None:
        """The autoscaler has spoken."""
        self._changed.set()

    @property
    def next_ready_s(self) -> float | None:
        """Until another engine takes requests, as the autoscaler promises; None: it does not."""
        return self._orders.next_ready_s

    @property
    def estimated_wait_s(self) -> float:
        """Until an engine takes requests; 0 if one does."""
        if self._lost_s is None:
            return 0.0
        if self.next_ready_s is not None:
            return self.next_ready_s
        gone_s = max(0.0, self._clock() - self._absent_since_s)
        expected_s = FIRST_ABSENCE_S if self._mean_absence_s is None else self._mean_absence_s
        if self.is_waking and self._orders.is_heard:
            expected_s = self._wake_s + _ORDER_S
        # What takes longer than ever may well take as long again.
        return expected_s - gone_s if gone_s < expected_s else gone_s

    @property
    def is_waking(self) -> bool:
        """No engine takes requests, but some will when they are awake."""
        return self._lost_s is not None and any(not m.is_leaving for m in self._fleet)

    def check(self, max_wait_s: float) -> None:
        """Raises ``ModelLoadingError`` if no engine takes requests, nor is expected to in time."""
        if self.card is not None:
            return
        if self._wanted_s is None:
            self._wanted_s = self._clock()
        if self._lost_s is None or self.estimated_wait_s > max_wait_s:
            raise self.loading_error()

    def loading_error(self) -> ModelLoadingError:
        if self._lost_s is None:
            return ModelLoadingError(self._model)
        return ModelLoadingError(self._model, self.estimated_wait_s, is_waking=self.is_waking)

    def _first_wait_s(self, max_wait_s: float) -> float:
        """How long to wait for the first engine of all."""
        promised_s = self.next_ready_s
        if promised_s is not None and promised_s <= max_wait_s:
            return max_wait_s
        return self._max_connecting_s if self.is_connecting or self._orders.is_heard else 0.0

    @property
    def _absent_since_s(self) -> float:
        """An engine that the autoscaler let go comes back for those who ask, not by itself."""
        assert self._lost_s is not None
        return self._asked_since_s if self._orders.is_heard else self._lost_s

    @property
    def _asked_since_s(self) -> float:
        return self._clock() if self._wanted_s is None else self._wanted_s

    @property
    def _wake_s(self) -> float:
        """Of the first that can be awake."""
        asleep = [member.client.rung_state for member in self._fleet if not member.is_leaving]
        return min((state.wake_s or FIRST_ABSENCE_S for state in asleep), default=FIRST_ABSENCE_S)

    def _end_absence(self) -> None:
        if self._lost_s is not None:
            begun_s = self._asked_since_s if self._orders.was_heard else self._lost_s
            absence_s = self._clock() - begun_s
            mean_s = self._mean_absence_s
            if absence_s > 0:
                self._mean_absence_s = (
                    absence_s if mean_s is None else mean_s + _WEIGHT * (absence_s - mean_s)
                )
            self._lost_s = None
        self._wanted_s = None


def _most_common(cards: Sequence[ModelCard]) -> ModelCard | None:
    num_alike = Counter(card.root_key for card in cards)
    return max(
        cards, key=lambda card: (num_alike[card.root_key], card.max_request_tokens), default=None
    )
