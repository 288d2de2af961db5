import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from deployments.engine_loss import EXIT_STATUS, leave_when_lost
from engine.errors import EngineDeadError


@dataclass
class Replica:
    """A front, its folder and its process, as far as they count here."""

    reason: str | None = None
    close_s: float = 0.0
    close_error: Exception | None = None
    done: list[str] = field(default_factory=list)

    def check_health(self) -> None:
        if self.reason is not None:
            raise EngineDeadError(self.reason)

    async def close(self) -> None:
        await asyncio.sleep(self.close_s)
        if self.close_error is not None:
            raise self.close_error
        self.done.append("closed")

    def remove(self) -> None:
        self.done.append("removed")

    def leave(self, status: int) -> None:
        self.done.append(f"left with {status}")

    async def watch(self) -> None:
        async with asyncio.timeout(5):
            await leave_when_lost("tiny/1", self, self, close_timeout_s=0.02, leave=self.leave)


async def test_a_lost_engine_is_closed_before_the_replica_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = Replica()
    with caplog.at_level(logging.ERROR, "ray.serve"):
        watch = asyncio.create_task(replica.watch())
        await asyncio.sleep(0.01)
        assert replica.done == []
        replica.reason = "rank 1 was stopped"
        await watch
    assert replica.done == ["closed", "removed", f"left with {EXIT_STATUS}"]
    assert caplog.messages == ["engine tiny/1 is lost and its replica leaves: rank 1 was stopped"]


async def test_a_front_that_does_not_close_in_time_keeps_nobody() -> None:
    replica = Replica("stuck", close_s=60)
    await replica.watch()
    assert replica.done == ["removed", f"left with {EXIT_STATUS}"]


async def test_a_fault_in_cleaning_up_keeps_nobody() -> None:
    replica = Replica("stuck", close_error=OSError("no such socket"))
    await replica.watch()
    assert replica.done == [f"left with {EXIT_STATUS}"]


async def test_a_replica_that_drains_stops_watching() -> None:
    replica = Replica()
    watch = asyncio.create_task(replica.watch())
    await asyncio.sleep(0)
    watch.cancel()
    replica.reason = "the process is gone, as it should be"
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert replica.done == []
