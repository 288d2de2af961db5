"""Which replicas a request may use: batch work and long prompts may have replicas of their own.

A pool's requests run on its own replicas, and beside the others' work only so many at a time as are
lent to them; everybody else may use a pool's replicas while nothing of it runs there. Pure: engine
ids and numbers in, no clock, no state. Gateways that see the same replicas agree without a word.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b

from app.config import PoolConfig, PoolsConfig
from engine.messages import ServiceClass


class Pool(StrEnum):
    """A kind of requests, and the replicas that are theirs."""

    SHARED = "shared"
    """All that have no pool of their own."""
    LONG_PROMPTS = "long_prompts"
    BATCH = "batch"


class Pools:
    """The rules of one configuration."""

    def __init__(self, config: PoolsConfig) -> None:
        self._config = config
        self._of_pool: dict[Pool, PoolConfig] = {
            pool: section
            for pool, section in (
                (Pool.BATCH, config.batch),
                (Pool.LONG_PROMPTS, config.long_prompts),
            )
            if section is not None
        }

    @property
    def of_their_own(self) -> Iterable[Pool]:
        """Those that are configured."""
        return self._of_pool.keys()

    def pool_of(self, service_class: ServiceClass, num_uncached_tokens: Callable[[], int]) -> Pool:
        """Of a request that lacks so many tokens where most of it is cached."""
        if service_class is ServiceClass.BATCH and Pool.BATCH in self._of_pool:
            return Pool.BATCH
        if Pool.LONG_PROMPTS not in self._of_pool:
            return Pool.SHARED
        is_long = num_uncached_tokens() >= self._config.long_prompt_tokens
        return Pool.LONG_PROMPTS if is_long else Pool.SHARED

    def homes(self, engine_ids: Iterable[str]) -> Mapping[str, Pool]:
        """Whose replica each one is. A replica that joins or leaves changes few others' pool."""
        ordered = sorted(engine_ids, key=_digest)
        homes = dict.fromkeys(ordered, Pool.SHARED)
        # One replica at least is left for those without a pool.
        free = iter(ordered[:-1])
        for pool, section in self._of_pool.items():
            wanted = section.replica_share * len(ordered)
            for _ in range(max(1, round(wanted)) if wanted else 0):
                engine_id = next(free, None)
                if engine_id is not None:
                    homes[engine_id] = pool
        return homes

    def has_place(
        self,
        pool: Pool,
        home: Pool,
        *,
        num_there: Callable[[Pool], int],
        num_more: int,
        has_home: bool,
        num_gateways: int,
    ) -> bool:
        """Whether a replica of ``home`` may take ``num_more`` samples of ``pool``.

        ``num_there``: samples of a pool that this gateway has there, or that wait for it.
        ``has_home``: whether the pool has replicas of its own now.
        """
        if pool is Pool.SHARED:
            return home is Pool.SHARED or num_there(home) == 0
        section = self._of_pool.get(pool)
        if section is None:
            return True  # the configuration has changed meanwhile
        if home is pool:
            limit = section.max_samples_per_replica
        elif home is Pool.SHARED:
            limit = section.max_lent_samples if has_home else max(1, section.max_lent_samples)
        else:
            limit = 0
        if limit is None:
            return True
        # One request with more samples than that must get in, too.
        num_own = num_there(pool)
        share = max(1, limit // num_gateways)
        return limit > 0 and (num_own == 0 or num_own + num_more <= share)


@lru_cache(maxsize=4096)
def _digest(engine_id: str) -> bytes:
    return blake2b(engine_id.encode(), digest_size=8).digest()
