"""What goes on in the background, under names, so that each is begun once and can be stopped."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

logger = logging.getLogger(__name__)


class NamedTasks:
    """On one event loop."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end`` is called after each."""
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def begin(self, name: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Nothing of this name may be under way."""
        assert name not in self._tasks
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._end)
        return task

    def get(self, name: str) -> asyncio.Task[None] | None:
        return self._tasks.get(name)

    def stop(self, name: str) -> None:
        """It is told once; it may take a while to clear up. Fine if there is none."""
        task = self._tasks.get(name)
        if task is not None and not task.cancelling():
            task.cancel()

    async def close(self) -> None:
        """Stop all, and wait for them."""
        while self._tasks:
            tasks = list(self._tasks.values())
            for name in list(self._tasks):
                self.stop(name)
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # for their callbacks

    def _end(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task.get_name()]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
        self._on_end()
