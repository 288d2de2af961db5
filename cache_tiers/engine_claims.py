"""Checks of what engines say, before anything believes it. Pure.

``msgspec`` has checked types by then; here are the bounds that types can't say: a wrong number must
not get into sums and comparisons that all engines of the node share.
"""

import math
from collections.abc import Iterable

import msgspec

from cache_tiers.arena import Arena
from cache_tiers.block_image import FINGERPRINT_BYTES, MAX_SHARDS, ImageLayout
from cache_tiers.config import MAX_LOAD_TIMEOUT_S
from cache_tiers.keys import KEY_BYTES
from cache_tiers.messages import Ended, Fetch, Open, Pin, Stored

_MAX_SECONDS = 1e9
_MAX_CHAIN_LEN = 2**31


class ProtocolViolation(Exception):
    """An engine said what it can't mean, and the message names it: its connection ends, and all
    that hangs on it is given back.
    """


def refusal(opening: Open, arena: Arena, key_stride: int) -> str | None:
    """Why such an engine can't use such an arena; None: it can."""
    layout = opening.layout
    if len(layout.fingerprint) != FINGERPRINT_BYTES:
        return f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(layout.fingerprint)}"
    if not 1 <= layout.num_shards <= MAX_SHARDS:
        return f"an image has 1 to {MAX_SHARDS} shards, not {layout.num_shards}"
    if layout.shard_bytes < 1 or layout.block_size_tokens < 1:
        return f"a layout with sizes below 1: {layout}"
    if opening.key_stride != key_stride:
        return f"routers are told every {key_stride}th key, not every {opening.key_stride}th"
    if not 0 <= opening.rank < layout.num_shards:
        return f"rank {opening.rank} of {layout.num_shards} shards"
    if layout.image_bytes > arena.max_image_bytes:
        return (
            f"an image of {opening.model} takes {layout.image_bytes} bytes, but "
            f"{arena.max_image_bytes} are the most that a cache of {arena.num_bytes} bytes has in "
            "one piece: raise host_bytes or lower block_size_tokens"
        )
    return None


def check_stored(stored: Stored, layout: ImageLayout) -> None:
    """Raises ``ProtocolViolation``, like all that follow."""
    _check_keys([stored.key])
    _check_seconds([stored.recompute_s])
    is_block = 1 <= stored.num_tokens <= layout.block_size_tokens
    if not is_block or not 1 <= stored.chain_len <= _MAX_CHAIN_LEN:
        raise ProtocolViolation(
            f"an image of {stored.num_tokens} tokens as block {stored.chain_len} of its chain"
        )


def check_fetch(fetch: Fetch, layout: ImageLayout) -> None:
    _check_keys([*fetch.keys, *(partial.key for partial in fetch.partials)])
    _check_seconds(msgspec.structs.astuple(fetch.cost))
    if not 0 <= fetch.num_held <= len(fetch.keys):
        raise ProtocolViolation(f"{fetch.num_held} of {len(fetch.keys)} blocks held")
    if not 0 <= fetch.timeout_s <= MAX_LOAD_TIMEOUT_S:
        raise ProtocolViolation(f"a timeout of {fetch.timeout_s} s")
    for partial in fetch.partials:
        is_partial = 1 <= partial.num_tokens < layout.block_size_tokens
        if not is_partial or not 0 <= partial.chain_len <= len(fetch.keys):
            raise ProtocolViolation(
                f"a partial block of {partial.num_tokens} tokens after {partial.chain_len} blocks"
            )


def check_pin(pin: Pin) -> None:
    _check_keys([pin.root_key, *pin.keys])
    _check_seconds([pin.ttl_s])


def check_ended(ended: Ended) -> None:
    _check_keys([ended.last_key, *ended.keys])
    _check_seconds([] if ended.expected_return_s is None else [ended.expected_return_s])


def _check_keys(keys: Iterable[bytes]) -> None:
    if any(len(key) != KEY_BYTES for key in keys):
        raise ProtocolViolation(f"a key that has not {KEY_BYTES} bytes")


def _check_seconds(values: Iterable[float]) -> None:
    """Costs are not only seconds: what they have in common is that they are finite."""
    for value in values:
        if math.isnan(value) or not 0 <= value <= _MAX_SECONDS:
            raise ProtocolViolation(f"{value} as a time or a number of tokens")
