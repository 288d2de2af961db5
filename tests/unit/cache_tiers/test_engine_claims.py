import math
from collections.abc import Iterator

import msgspec
import pytest
from pydantic import ValidationError

from cache_tiers.arena import Arena
from cache_tiers.config import MAX_LOAD_TIMEOUT_S, NodeCacheConfig
from cache_tiers.engine_claims import (
    ProtocolViolation,
    check_ended,
    check_fetch,
    check_pin,
    check_stored,
    refusal,
)
from cache_tiers.messages import Ended, Fetch, Open, Partial, Pin, RecomputeCost, Stored
from tests.unit.cache_tiers.fake_image_store import LAYOUT

KEY = bytes(16)
OPEN = Open(LAYOUT, rank=0, model="a-model", key_stride=8)
STORED = Stored(0, KEY, num_tokens=16, chain_len=1, recompute_s=0.1)
FETCH = Fetch(1, [KEY, KEY], 1, [Partial(KEY, 2, 3)], RecomputeCost(0.1, 512), timeout_s=2.0)
PIN = Pin(KEY, [KEY], ttl_s=300.0)
ENDED = Ended(KEY, [KEY], "chat", expected_return_s=None)


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    arena = Arena(16 * 1024**2)
    yield arena
    arena.close()


def test_what_engines_say_when_all_is_well_passes(arena: Arena) -> None:
    assert refusal(OPEN, arena, 8) is None
    check_stored(STORED, LAYOUT)
    check_fetch(FETCH, LAYOUT)
    check_pin(PIN)
    check_ended(ENDED)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": b"short"}, "a fingerprint has 16 bytes, not 5"),
        ({"num_shards": 0}, "shards, not 0"),
        ({"num_shards": 10_000}, "shards, not 10000"),
        ({"shard_bytes": -1}, "sizes below 1"),
        ({"block_size_tokens": 0}, "sizes below 1"),
        ({"shard_bytes": 8 * 1024**2}, "of a-model takes 8392704 bytes.*raise host_bytes"),
    ],
)
def test_a_layout_that_can_not_be_cached_is_refused(
    arena: Arena, changes: dict[str, object], reason: str
) -> None:
    opening = msgspec.structs.replace(OPEN, layout=msgspec.structs.replace(LAYOUT, **changes))
    with pytest.raises(AssertionError, match=reason):
        assert refusal(opening, arena, 8) is None, refusal(opening, arena, 8)


def test_an_engine_that_tells_routers_other_keys_is_refused(arena: Arena) -> None:
    said = refusal(OPEN, arena, 16)
    assert said == "routers are told every 16th key, not every 8th"


@pytest.mark.parametrize("rank", [-1, 1])
def test_a_rank_that_the_layout_does_not_have_is_refused(arena: Arena, rank: int) -> None:
    said = refusal(msgspec.structs.replace(OPEN, rank=rank), arena, 8)
    assert said == f"rank {rank} of 1 shards"


@pytest.mark.parametrize(
    "changes",
    [
        {"key": b"short"},
        {"num_tokens": 0},
        {"num_tokens": 17},
        {"chain_len": 0},
        {"chain_len": 2**40},
        {"recompute_s": math.nan},
        {"recompute_s": -1.0},
        {"recompute_s": math.inf},
    ],
)
def test_an_image_that_can_not_be_is_a_violation(changes: dict[str, object]) -> None:
    with pytest.raises(ProtocolViolation):
        check_stored(msgspec.structs.replace(STORED, **changes), LAYOUT)


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": [KEY, b"short"]},
        {"num_held": 3},
        {"num_held": -1},
        {"partials": [Partial(b"short", 2, 3)]},
        {"partials": [Partial(KEY, 3, 3)]},
        {"partials": [Partial(KEY, 2, 16)]},
        {"partials": [Partial(KEY, 2, 0)]},
        {"cost": RecomputeCost(token_s=math.nan)},
        {"cost": RecomputeCost(step_tokens=-1)},
        {"timeout_s": math.nan},
        {"timeout_s": -1.0},
        {"timeout_s": 1e6},
    ],
)
def test_a_fetch_that_can_not_be_meant_is_a_violation(changes: dict[str, object]) -> None:
    with pytest.raises(ProtocolViolation):
        check_fetch(msgspec.structs.replace(FETCH, **changes), LAYOUT)


def test_a_fetch_may_take_as_long_as_can_be_configured() -> None:
    config = NodeCacheConfig(load_timeout_s=MAX_LOAD_TIMEOUT_S)
    check_fetch(msgspec.structs.replace(FETCH, timeout_s=config.load_timeout_s), LAYOUT)
    with pytest.raises(ValidationError):
        NodeCacheConfig(load_timeout_s=MAX_LOAD_TIMEOUT_S + 1)


def test_pins_and_ends_with_wrong_keys_or_times_are_violations() -> None:
    with pytest.raises(ProtocolViolation):
        check_pin(msgspec.structs.replace(PIN, keys=[b""]))
    with pytest.raises(ProtocolViolation):
        check_pin(msgspec.structs.replace(PIN, root_key=b""))
    with pytest.raises(ProtocolViolation):
        check_pin(msgspec.structs.replace(PIN, ttl_s=math.inf))
    with pytest.raises(ProtocolViolation):
        check_ended(msgspec.structs.replace(ENDED, last_key=b""))
    with pytest.raises(ProtocolViolation):
        check_ended(msgspec.structs.replace(ENDED, expected_return_s=math.nan))
