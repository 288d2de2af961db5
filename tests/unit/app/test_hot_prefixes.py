"""Which prefixes are kept, in which order they are worth bringing, and that they are bounded."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.hot_prefixes import HotPrefixes
from app.routing.candidate import ReplicaRates
from app.text.tokenization import Prompt
from cache_tiers.keys import BlockKey, block_keys

RATES = ReplicaRates(prefill_token_s=0.001)


def prompt(*runs: tuple[int, int]) -> Prompt:
    """Of runs of (token, number)."""
    token_ids = [token for token, number in runs for _ in range(number)]
    keys = list[bytes](block_keys(BlockKey(b"root"), token_ids, 16))
    return Prompt(token_ids, b"root", keys, b"root")


def test_what_comes_again_is_kept_whole() -> None:
    hot = HotPrefixes()
    for user in range(5):
        hot.note(prompt((1, 256), (100 + user, 300)), 2, 16, now_s=float(user))
    (prefix,) = hot.hottest(5.0, RATES)
    assert prefix.prompt == prompt((1, 256))
    assert prefix.index_keys == tuple(prefix.prompt.index_keys)


def test_what_came_once_or_nobody_holds_is_no_habit() -> None:
    hot = HotPrefixes()
    for user in range(9):
        hot.note(prompt((user, 256)), 2, 16, now_s=0.0)
        hot.note(prompt((50, 256)), 0, 16, now_s=0.0)
    assert hot.hottest(0.0, RATES) == []


def test_reuse_times_the_time_to_compute_is_what_it_is_worth() -> None:
    hot = HotPrefixes()
    short, long, rare = prompt((1, 128)), prompt((2, 1280)), prompt((3, 1280))
    for number in range(20):
        hot.note(short, 1, 16, 0.0)
        if number % 2:
            hot.note(long, 10, 16, 0.0)
        if number % 6 == 0:
            hot.note(rare, 10, 16, 0.0)
    assert [p.prompt.token_ids[0] for p in hot.hottest(0.0, RATES)] == [2, 3, 1]


def test_a_prefix_within_a_more_valuable_one_comes_with_it() -> None:
    hot = HotPrefixes()
    for _ in range(5):
        hot.note(prompt((1, 1024)), 1, 16, 0.0)
        hot.note(prompt((1, 1024)), 8, 16, 0.0)
    assert [p.num_tokens for p in hot.hottest(0.0, RATES)] == [1024]


def test_what_does_not_come_again_is_forgotten() -> None:
    hot = HotPrefixes()
    for _ in range(5):
        hot.note(prompt((1, 256)), 2, 16, 0.0)
    assert hot.hottest(60.0, RATES)
    assert hot.hottest(3600.0, RATES) == []


def test_a_hotter_prefix_takes_the_place_of_a_colder_one() -> None:
    hot = HotPrefixes(max_bytes=4000)
    for _ in range(3):
        hot.note(prompt((1, 256)), 2, 16, 0.0)
    hot.note(prompt((2, 256)), 2, 16, 1000.0)
    for _ in range(2):
        hot.note(prompt((2, 256)), 2, 16, 1000.0)
    assert [p.prompt.token_ids[0] for p in hot.hottest(1000.0, RATES)] == [2]
    hot.check_integrity()


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 500)), max_size=60))
@settings(max_examples=50, deadline=None)
def test_it_takes_no_more_than_it_may(notes: list[tuple[int, int, int]]) -> None:
    hot = HotPrefixes(max_bytes=9000)
    for token, num_keys, now_s in notes:
        hot.note(prompt((9, 128), (token, 640)), num_keys, 16, float(now_s))
        hot.check_integrity()
    for prefix in hot.hottest(500.0, RATES):
        assert list(block_keys(BlockKey(b"root"), prefix.prompt.token_ids, 16)) == list(
            prefix.block_keys
        )
