from cache_tiers.keys import BlockKey
from cache_tiers.unsound_keys import UnsoundKeys

FINGERPRINT, OTHER = b"f" * 16, b"g" * 16


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number] * 16))


def test_a_key_is_unsound_for_its_layout_alone() -> None:
    keys = UnsoundKeys()
    keys.add(FINGERPRINT, key(1))
    assert keys.has(FINGERPRINT, key(1))
    assert not keys.has(FINGERPRINT, key(2))
    assert not keys.has(OTHER, key(1))


def test_what_was_replaced_is_asked_for_again() -> None:
    keys = UnsoundKeys()
    keys.add(FINGERPRINT, key(1))
    keys.discard(FINGERPRINT, key(1))
    keys.discard(FINGERPRINT, key(2))
    assert not keys.has(FINGERPRINT, key(1))


def test_the_oldest_are_forgotten() -> None:
    keys = UnsoundKeys(max_keys=3)
    for number in range(5):
        keys.add(FINGERPRINT, key(number))
    are_known = [keys.has(FINGERPRINT, key(number)) for number in range(5)]
    assert are_known == [False] * 2 + [True] * 3
