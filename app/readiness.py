"""Whether engines take requests of one model, and how long it takes until one does.

A fleet that was lost a moment ago comes back, usually after as long as it did before: requests wait
for that. One that was never there has no tokenizer yet, and nobody knows when it comes.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from app.errors import ModelLoadingError
from app.fleet import Fleet
from engine.messages import ModelCard

MAX_CONNECTING_S = 5.0
"""Wait for a first engine that discovery named; a large tokenizer takes about one second."""

FIRST_ABSENCE_S = 15.0
"""How long a fleet is expected to be away, until it was once: as an engine on a CPU takes to start.
"""
_WEIGHT = 0.5
"""Of the newest absence; there are few."""


class Readiness:
    """Of one model's fleet; told of every change in it."""

    def __init__(
        self,
        model: str,
        fleet: Fleet,
        clock: Callable[[], float],
        *,
        max_connecting_s: float = MAX_CONNECTING_S,
    ) -> None:
        self.is_connecting = False
        """Replicas are known; those that are not connected yet will be in a moment."""
        self._model = model
        self._fleet = fleet
        self._clock = clock
        self._max_connecting_s = max_connecting_s
        self._joined = asyncio.Event()
        self._last_card: ModelCard | None = None
        self._lost_s: float | None = None
        """Since when no engine takes requests, of those that there were."""
        self._mean_absence_s: float | None = None

    @property
    def card(self) -> ModelCard | None:
        """Of the engine with the most room, among those that take requests; None without any.

        While weights are replaced, of those that most of these engines have.
        """
        cards = [member.client.card for member in self._fleet if member.is_accepting]
        num_alike = Counter(card.root_key for card in cards)
        return max(
            cards,
            key=lambda card: (num_alike[card.root_key], card.max_request_tokens),
            default=None,
        )

    async def ready_card(self) -> ModelCard:
        """As ``card``, after a moment if a first engine is being connected; of a fleet that was
        lost, as it was last.

        Raises ``ModelLoadingError`` if there was none and none comes.
        """
        if self.card is None and self._last_card is None and self.is_connecting:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._max_connecting_s):
                    while self.card is None:
                        self._joined.clear()
                        await self._joined.wait()
        card = self.card or self._last_card
        if card is None:
            raise ModelLoadingError(self._model)
        return card

    def note_change(self) -> None:
        """An engine came, leaves or is lost."""
        card = self.card
        if card is not None:
            self._last_card = card
            self._end_absence()
            self._joined.set()
        elif self._last_card is not None and self._lost_s is None:
            self._lost_s = self._clock()

    @property
    def estimated_wait_s(self) -> float:
        """Until an engine takes requests; 0 if one does."""
        if self._lost_s is None:
            return 0.0
        gone_s = self._clock() - self._lost_s
        expected_s = FIRST_ABSENCE_S if self._mean_absence_s is None else self._mean_absence_s
        # What takes longer than ever may well take as long again.
        return expected_s - gone_s if gone_s < expected_s else gone_s

    def check(self, max_wait_s: float) -> None:
        """Raises ``ModelLoadingError`` if no engine takes requests, nor is expected to in time."""
        if self.card is None and (self._lost_s is None or self.estimated_wait_s > max_wait_s):
            raise self.loading_error()

    def loading_error(self) -> ModelLoadingError:
        if self._lost_s is None:
            return ModelLoadingError(self._model)
        return ModelLoadingError(self._model, self.estimated_wait_s)

    def _end_absence(self) -> None:
        if self._lost_s is not None:
            absence_s = self._clock() - self._lost_s
            mean_s = self._mean_absence_s
            self._mean_absence_s = (
                absence_s if mean_s is None else mean_s + _WEIGHT * (absence_s - mean_s)
            )
            self._lost_s = None
