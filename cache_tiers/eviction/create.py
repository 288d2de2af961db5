"""Makes the policy that the configuration names."""

from typing import Literal

from cache_tiers.eviction.arc import ArcPolicy
from cache_tiers.eviction.base import BlockFacts, EvictionPolicy
from cache_tiers.eviction.lru import LruPolicy
from cache_tiers.eviction.s3fifo import S3FifoPolicy
from cache_tiers.eviction.value import ValuePolicy

PolicyName = Literal["value", "lru", "s3fifo", "arc"]


def create_policy(name: PolicyName, blocks: BlockFacts, capacity: int) -> EvictionPolicy:
    """For a tier of about ``capacity`` blocks."""
    match name:
        case "value":
            return ValuePolicy(blocks)
        case "lru":
            return LruPolicy()
        case "s3fifo":
            return S3FifoPolicy(blocks, capacity)
        case "arc":
            return ArcPolicy(blocks, capacity)
