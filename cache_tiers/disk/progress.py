"""Whether a device still answers: a hung one gives no error, and would take ever more of its
callers' memory with it.

Must not know what is asked of it.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

_LONGEST_SILENCE_S = 5.0


class Progress:
    """``with`` it on the event loop around requests, ``step`` in threads after each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_waiting = 0
        self._last_step_s = 0.0

    @property
    def is_stalled(self) -> bool:
        """Nothing that is asked for has been answered for a while."""
        silence_s = self._clock() - self._last_step_s
        return self._num_waiting > 0 and silence_s > _LONGEST_SILENCE_S

    def step(self) -> None:
        """The device answered."""
        self._last_step_s = self._clock()

    def __enter__(self) -> Self:
        if not self._num_waiting:
            self.step()
        self._num_waiting += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._num_waiting -= 1


def no_answer() -> OSError:
    """What to say of a stalled device."""
    return TimeoutError(f"the device has not answered for {_LONGEST_SILENCE_S:.0f} s")
