"""What was tokenized once is remembered, within a bound."""

from array import array

from app.text.segment_cache import SegmentCache, segment_key
from app.text.segment_encoder import SegmentEncoder
from tests.unit.app.fakes import TOKENIZER, ids_of


def test_the_bound_is_kept_and_the_oldest_go_first() -> None:
    cache = SegmentCache(max_bytes=10_000)
    keys = [segment_key(str(number), is_first=False) for number in range(100)]
    for key in keys:
        cache.get(keys[0])
        cache.put(key, array("I", range(100)))
        assert cache.num_bytes <= 10_000
    assert cache.get(keys[0]) is not None
    assert cache.get(keys[1]) is None
    assert cache.get(keys[-1]) == array("I", range(100))


def test_what_is_put_twice_counts_once() -> None:
    cache = SegmentCache(max_bytes=10_000)
    for _ in range(1000):
        cache.put(b"key", array("I", [1, 2, 3]))
    once = cache.num_bytes
    cache.put(b"other", array("I", [1, 2, 3]))
    assert cache.num_bytes == 2 * once
    assert cache.get(b"key") is not None


def test_more_than_the_cache_holds_is_not_kept() -> None:
    cache = SegmentCache(max_bytes=1000)
    cache.put(b"key", array("I", range(1000)))
    assert cache.get(b"key") is None
    assert cache.num_bytes == 0


def test_known_pieces_are_not_tokenized_again() -> None:
    cache = SegmentCache(max_bytes=100_000)
    encoder = SegmentEncoder(TOKENIZER, cache)
    pieces = ["the question", "the answer", "the question"]
    expected = [array("I", ids_of(piece)) for piece in pieces]
    assert encoder.encode(pieces, is_first=True) == expected
    cache.put(segment_key("the answer", is_first=False), array("I", [7]))
    assert encoder.encode(pieces, is_first=True)[1] == array("I", [7])
