"""Whether requests are let into the queue of one model, and what those are told that are not.

Must not know engines, nor what becomes of a request that is let in.
"""

from collections.abc import Sequence

from app.config import GatewayConfig
from app.errors import OverloadedError, retry_after_s
from app.queue import Job
from app.readiness import Readiness
from app.waiting import WaitingRoom
from engine.messages import ServiceClass


class Admission:
    """The bounds of ``waiting``."""

    def __init__(
        self, model: str, config: GatewayConfig, readiness: Readiness, waiting: WaitingRoom
    ) -> None:
        self._model = model
        self._config = config
        self._readiness = readiness
        self._waiting = waiting

    def reconfigure(self, config: GatewayConfig) -> None:
        """New limits; who waits already goes on waiting."""
        self._config = config

    def admit(self, jobs: Sequence[Job]) -> None:
        """There is room for all ``jobs``, which are of one class, when this returns.

        Raises ``ModelLoadingError`` without an engine, unless one is expected back in time, and
        ``OverloadedError`` when the queue is full, with nothing of a lower class in it, or the wait
        would be too long.
        """
        service_class = jobs[0].service_class
        max_wait_s = self._waiting.max_wait_s(service_class)
        self._readiness.check(max_wait_s)
        estimated_s = self._waiting.estimated_wait_s(service_class)
        if estimated_s > max_wait_s:
            raise self._overloaded(service_class, f"a request would wait about {estimated_s:.0f} s")
        self._make_room(len(jobs), service_class)

    def _make_room(self, num_jobs: int, service_class: ServiceClass) -> None:
        """Those of lower classes that would go last are refused in favour of ``num_jobs`` others;
        all of the room is made, or none.
        """
        num_too_many = len(self._waiting) + num_jobs - self._config.max_queue_len
        if num_too_many <= 0:
            return
        reason = f"{len(self._waiting)} requests wait, of at most {self._config.max_queue_len}"
        victims = self._waiting.last_below(service_class, num_too_many)
        if len(victims) < num_too_many:
            raise self._overloaded(service_class, reason)
        for job in victims:
            self._waiting.give_up(job, self._overloaded(job.service_class, reason))

    def _overloaded(self, service_class: ServiceClass, reason: str) -> OverloadedError:
        come_back_s = self._waiting.estimated_wait_s(service_class)
        if self._readiness.next_ready_s is not None:
            come_back_s = min(come_back_s, self._readiness.next_ready_s)
        return OverloadedError(
            f"The model `{self._model}` is overloaded: {reason}. Try again later.",
            retry_after_s=retry_after_s(come_back_s),
        )
