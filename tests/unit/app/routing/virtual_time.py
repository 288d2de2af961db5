"""An event loop whose time passes at once: it jumps to the next timer when nothing is ready."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time`` starts at 0. Everything happens in one thread; sockets are not waited for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_TimeSelector(self))

    def time(self) -> float:
        return self.now_s


class _TimeSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("all tasks wait for something that no timer will bring")
        self._loop.now_s += max(0.0, timeout)
        return super().select(0)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
