"""Cache breakpoints: what is stored and pinned at once, found again amid a block, and billed."""

import pytest
from msgspec.structs import replace

from cache_tiers.keys import BlockKey, partial_key
from cache_tiers.messages import Fetch, Pin
from engine.messages import CacheBreakpoint, CacheWrite, EngineRequest
from tests.unit.engine.fakes import BLOCK_SIZE, ROOT_KEY, Answer, make_config, make_request
from tests.unit.engine.tier_fakes import FakeNode, TieredEngine, make_tiered

MINUTES_5, HOUR = 300.0, 3600.0


def prompt(num_tokens: int, first: int = 3) -> list[int]:
    return [first, *[10 + position % 30 for position in range(num_tokens - 1)]]


def pinned(
    name: str, num_tokens: int, *breakpoints: tuple[int, float], max_tokens: int = 4
) -> EngineRequest:
    request = make_request(name, prompt(num_tokens), max_tokens)
    return replace(request, breakpoints=[CacheBreakpoint(*place) for place in breakpoints])


def ask(tiered: TieredEngine, request: EngineRequest) -> Answer:
    tiered.engine.add(request)
    return tiered.run()[request.request_id]


def written(answer: Answer) -> list[CacheWrite]:
    assert answer.usage is not None
    return answer.usage.cache_written


def last_key(request: EngineRequest, num_tokens: int) -> bytes:
    """Of the partial block that ends at ``num_tokens``."""
    begin = num_tokens // BLOCK_SIZE * BLOCK_SIZE
    parent = BlockKey((request.block_keys[: num_tokens // BLOCK_SIZE] or [ROOT_KEY])[-1])
    return partial_key(parent, request.token_ids[begin:num_tokens])


def evict_all(tiered: TieredEngine) -> None:
    num_tokens = tiered.engine._blocks.num_blocks * BLOCK_SIZE - 1
    ask(tiered, make_request("filler", prompt(num_tokens, first=4), max_tokens=1))
    del tiered.answers["filler"]


def test_a_pinned_prefix_is_stored_and_pinned_at_once_its_partial_block_included() -> None:
    tiered = make_tiered()
    request = pinned("a", 25, (10, HOUR))

    answer = ask(tiered, request)

    keys = [*request.block_keys[:2], last_key(request, 10)]
    assert list(tiered.node.images) == [keys[2], *keys[:2]]
    assert tiered.node.images[keys[2]].num_tokens == 2
    assert tiered.node.images[keys[2]].chain_len == 3
    assert tiered.node.of(Pin) == [Pin(ROOT_KEY, keys, HOUR)]
    assert written(answer) == [CacheWrite(HOUR, 10)]


def test_a_prompt_that_ends_with_its_prefill_is_pinned_whole() -> None:
    tiered = make_tiered()
    request = pinned("a", 10, (10, HOUR), max_tokens=1)

    ask(tiered, request)

    assert tiered.node.of(Pin) == [
        Pin(ROOT_KEY, [*request.block_keys, last_key(request, 10)], HOUR)
    ]


def test_a_pinned_prefix_comes_back_up_to_the_token() -> None:
    tiered = make_tiered(num_blocks=20)
    first = ask(tiered, pinned("first", 25, (10, HOUR)))
    for key in make_request("x", prompt(25)).block_keys[2:]:
        tiered.node.discard(key)
    evict_all(tiered)
    for key in make_request("x", prompt(25)).block_keys[2:]:
        tiered.node.discard(key)

    again = ask(tiered, pinned("again", 25, (10, HOUR)))

    assert again.token_ids == first.token_ids
    assert again.usage is not None
    assert again.usage.cached_tokens == 10
    assert again.usage.restored is not None
    assert again.usage.restored.host == 10
    assert written(again) == []


def test_a_partial_block_is_restored_behind_blocks_of_the_accelerator() -> None:
    tiered = make_tiered(num_blocks=40)
    ask(tiered, pinned("first", 11, (10, HOUR)))
    other = replace(
        make_request("other", [*prompt(10), 5, 5, 5, 5]),
        breakpoints=[CacheBreakpoint(10, HOUR)],
    )

    answer = ask(tiered, other)

    assert answer.usage is not None
    assert answer.usage.cached_tokens == 10
    assert answer.usage.restored is not None
    assert answer.usage.restored.host == 2


def test_tokens_are_written_once_for_each_time_to_live() -> None:
    tiered = make_tiered()

    first = ask(tiered, pinned("first", 25, (8, HOUR), (19, MINUTES_5)))
    longer = ask(tiered, pinned("longer", 29, (8, HOUR), (24, MINUTES_5)))
    tiered.clock.now_s = MINUTES_5 + 1
    later = ask(tiered, pinned("later", 29, (8, HOUR), (24, MINUTES_5)))

    assert written(first) == [CacheWrite(HOUR, 8), CacheWrite(MINUTES_5, 11)]
    assert written(longer) == [CacheWrite(MINUTES_5, 8)]  # the block that was pinned in part
    assert written(later) == [CacheWrite(MINUTES_5, 16)]


def test_reading_a_pinned_prefix_pins_it_for_longer_and_writes_nothing() -> None:
    tiered = make_tiered()
    ask(tiered, pinned("first", 25, (10, MINUTES_5)))
    tiered.clock.now_s = MINUTES_5 - 1
    again = ask(tiered, pinned("again", 25, (10, MINUTES_5)))
    tiered.clock.now_s = MINUTES_5 + 100
    third = ask(tiered, pinned("third", 25, (10, MINUTES_5)))

    assert written(again) == written(third) == []
    assert len(tiered.node.of(Pin)) == 3


def test_all_samples_report_what_was_written() -> None:
    tiered = make_tiered()
    tiered.engine.add(replace(pinned("a", 25, (10, HOUR)), num_samples=3))

    answers = tiered.run()

    assert [written(a) for a in answers.values()] == [[CacheWrite(HOUR, 10)]] * 3
    assert len(tiered.node.of(Pin)) == 1


def test_a_prompt_whose_first_sample_is_gone_is_pinned_all_the_same() -> None:
    tiered = make_tiered(make_config(max_num_batched_tokens=8))
    tiered.engine.add(replace(pinned("a", 25, (24, HOUR)), num_samples=2))
    tiered.turn()
    tiered.engine.abort("a", index=0)

    answers = tiered.run()

    assert written(answers["a#1"]) == [CacheWrite(HOUR, 24)]
    assert len(tiered.node.of(Pin)) == 1


@pytest.mark.parametrize("chunk_tokens", [4, 7, 64])
def test_chunks_make_no_difference(chunk_tokens: int) -> None:
    tiered = make_tiered(make_config(max_num_batched_tokens=chunk_tokens))
    request = pinned("a", 25, (10, HOUR), (25, MINUTES_5))

    answer = ask(tiered, request)

    assert written(answer) == [CacheWrite(HOUR, 10), CacheWrite(MINUTES_5, 15)]
    assert [pin.ttl_s for pin in tiered.node.of(Pin) if isinstance(pin, Pin)] == [HOUR, MINUTES_5]
    assert set(tiered.node.images) == {
        *request.block_keys,
        last_key(request, 10),
        last_key(request, 25),
    }


def test_of_a_prefix_that_found_no_slots_the_stored_part_is_pinned() -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(num_images=3, stock=3))
    request = pinned("a", 25, (24, HOUR))
    ask(tiered, request)
    assert tiered.node.of(Pin) == []

    evict_all(tiered)

    assert tiered.node.of(Pin) == [Pin(ROOT_KEY, request.block_keys[:3], HOUR)]


def test_partial_blocks_at_breakpoints_are_asked_for() -> None:
    tiered = make_tiered(node=FakeNode(is_silent=True))
    request = pinned("a", 25, (2, HOUR), (8, HOUR), (10, HOUR))
    tiered.engine.add(request)

    [fetch] = tiered.node.of(Fetch)
    assert isinstance(fetch, Fetch)
    assert [(p.key, p.chain_len, p.num_tokens) for p in fetch.partials] == [
        (last_key(request, 2), 0, 2),
        (last_key(request, 10), 2, 2),
    ]


def test_without_tiers_nothing_is_pinned() -> None:
    tiered = make_tiered()
    tiered.node.go_down()
    tiered.turn()

    assert written(ask(tiered, pinned("a", 25, (10, HOUR)))) == []
