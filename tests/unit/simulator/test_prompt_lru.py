"""Blocks of recent prompts, beside a slow twin that keeps every block in order."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.prompt_lru import PromptLru

prompts = st.text("abcdefgh", max_size=5).map(
    lambda text: [letter.encode() for letter in dict.fromkeys(text)]
)


@given(st.integers(1, 6), st.lists(prompts, max_size=30))
def test_what_was_used_longest_ago_is_dropped_first(max_keys: int, uses: list[list[bytes]]) -> None:
    lru, slow = PromptLru(), dict[bytes, None]()
    for keys in uses:
        assert lru.use(keys) == [key for key in keys if key not in slow]
        for key in reversed(keys):
            slow.pop(key, None)
            slow[key] = None
        dropped = list(slow)[: max(0, len(slow) - max_keys)]
        for key in dropped:
            del slow[key]
        assert lru.trim(max_keys) == dropped
        assert (len(lru), set(lru)) == (len(slow), set(slow))


def test_nothing_is_left_after_clear() -> None:
    lru = PromptLru()
    lru.use([b"a", b"b", b"c"])
    lru.trim(2)
    lru.clear()
    assert (len(lru), lru.use([b"a"])) == (0, [b"a"])
    lru.use([b"x"])
    assert lru.trim(1) == [b"a"]
