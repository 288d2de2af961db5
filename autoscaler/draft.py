"""A model's sizes while they are being decided, with who had the last word. Knows no reasons."""

from dataclasses import dataclass, field

from autoscaler.plan import Cause, ForecastRecord


@dataclass(slots=True)
class Draft:
    """``num_total`` counts those that serve and those that sleep."""

    num_serving: int
    num_total: int
    causes: list[Cause]
    """The last to change something first."""
    num_wanted: float = 0.0
    forecasts: tuple[ForecastRecord, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def num_parked(self) -> int:
        return self.num_total - self.num_serving

    def raise_to(self, cause: Cause, *, serving: int = 0, total: int = 0) -> None:
        """At least so many."""
        num_serving = max(self.num_serving, serving)
        self._set(num_serving, max(self.num_total, total, num_serving), cause)

    def raise_to_floor(self, cause: Cause, serving: int) -> None:
        """At least so many, and the reason for them where less is wanted, however long they are
        there already."""
        self.raise_to(cause, serving=serving)
        if self.num_serving == serving > self.num_wanted:
            self._blame(cause)

    def cap_at(self, cause: Cause, total: int) -> None:
        """At most so many; those that sleep go first."""
        num_total = min(self.num_total, max(0, total))
        self._set(min(self.num_serving, num_total), num_total, cause)

    def cap_parked(self, most: int) -> None:
        """So many sleep at most: the others serve."""
        self.num_serving = max(self.num_serving, self.num_total - most)

    def replace(self, cause: Cause, num_serving: int, num_total: int) -> None:
        """Whatever was so before."""
        self._set(num_serving, num_total, cause)

    def _set(self, num_serving: int, num_total: int, cause: Cause) -> None:
        if (num_serving, num_total) == (self.num_serving, self.num_total):
            return
        self.num_serving, self.num_total = num_serving, num_total
        self._blame(cause)

    def _blame(self, cause: Cause) -> None:
        self.causes = [cause, *(each for each in self.causes if each is not cause)]
