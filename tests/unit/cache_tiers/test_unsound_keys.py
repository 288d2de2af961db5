from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.keys import BlockKey
from cache_tiers.unsound_keys import UnsoundKeys


def image(number: int, fingerprint: bytes = b"f" * 16) -> BlockImage:
    layout = ImageLayout(fingerprint, 1, 10, 16)
    return BlockImage(layout, memoryview(bytearray(10)), BlockKey(bytes([number] * 16)), 16)


def is_known(keys: UnsoundKeys, of: BlockImage) -> bool:
    return (of.layout.fingerprint, of.key) in keys


def test_a_key_is_unsound_for_its_layout_alone() -> None:
    keys = UnsoundKeys()
    keys.add(image(1))
    assert is_known(keys, image(1))
    assert not is_known(keys, image(2))
    assert not is_known(keys, image(1, b"g" * 16))


def test_what_was_replaced_is_asked_for_again() -> None:
    keys = UnsoundKeys()
    keys.add(image(1))
    keys.discard(image(1))
    keys.discard(image(2))
    assert not is_known(keys, image(1))


def test_the_oldest_are_forgotten() -> None:
    keys = UnsoundKeys(max_keys=3)
    for number in range(5):
        keys.add(image(number))
    assert [is_known(keys, image(number)) for number in range(5)] == [False] * 2 + [True] * 3
