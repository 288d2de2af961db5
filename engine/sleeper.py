"""Puts an engine to sleep and wakes it: all ranks' memory for KV goes and comes.

Process, weights, compiled code and what is known of step times stay, on a CUDA device the weights,
too. Must not know who decides, or requests.
"""

import logging
import time
from collections.abc import Callable

from cache_tiers.rung import Rung
from engine.available_memory import available_memory_bytes
from engine.config import MIB
from engine.engine import Engine
from engine.errors import KvMemoryError
from engine.kv_memory import KvMemory
from engine.rank_messages import RungChange

logger = logging.getLogger(__name__)


class Sleeper:
    """Between steps only. Owner of whether the pool is there."""

    def __init__(
        self,
        engine: Engine,
        memory: KvMemory,
        *,
        num_host_bytes: int = 0,
        available: Callable[[], int] = available_memory_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``num_host_bytes``: what the pool takes of the machine's memory, of which so much must be
        ``available``: the kernel promises more than there is, and then ends the process.
        """
        self._engine = engine
        self._memory = memory
        self._num_host_bytes = num_host_bytes
        self._available = available
        self._clock = clock
        self._rung = Rung.SERVING

    def sleep(self) -> RungChange:
        """Idempotent. Precondition: no request is here, and ``Engine.hand_over`` holds."""
        if self._rung is Rung.SERVING:
            started_s = self._clock()
            self._engine.sleep()
            self._memory.free_kv()
            self._rung = Rung.PARKED
            logger.info("asleep: the KV pool is freed, in %.3f s", self._clock() - started_s)
        return RungChange(self._rung)

    def wake(self) -> RungChange:
        """Idempotent; may be called again after a failure."""
        if self._rung is Rung.PARKED:
            started_s = self._clock()
            try:
                self._check_available()
                self._memory.allocate_kv()
            except KvMemoryError as error:
                logger.warning("still asleep: %s", error)
                return RungChange(self._rung, str(error))
            self._engine.wake()
            self._rung = Rung.SERVING
            logger.info("awake: the KV pool is there, in %.3f s", self._clock() - started_s)
        return RungChange(self._rung)

    def _check_available(self) -> None:
        if self._num_host_bytes == 0:
            return
        num_available = self._available()
        if num_available < self._num_host_bytes:
            raise KvMemoryError(
                f"the KV pool needs {self._num_host_bytes / MIB:.0f} MiB and "
                f"{num_available / MIB:.0f} MiB are free: free memory of this machine, or lower "
                "kv_cache_bytes"
            )
