"""Images for tests of the disk tier, each in memory of its own, and a failing device."""

import hashlib
import mmap
from collections.abc import Sequence
from pathlib import Path

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.config import DiskConfig
from cache_tiers.disk.files import Files
from cache_tiers.keys import BlockKey

LAYOUT = ImageLayout(b"layout-of-a-test", 2, 4000, 16)
"""Images of three pages."""


def key_of(number: int) -> BlockKey:
    """The key of the image of that number."""
    return BlockKey(number.to_bytes(16, "big"))


def blank(number: int, layout: ImageLayout = LAYOUT, num_tokens: int = 16) -> BlockImage:
    """Memory that is to become the image of that number."""
    memory = memoryview(mmap.mmap(-1, layout.image_bytes))
    return BlockImage(layout, memory, key_of(number), num_tokens)


def sealed(number: int, layout: ImageLayout = LAYOUT, num_tokens: int = 16) -> BlockImage:
    """The image of that number: other bytes for every number and layout."""
    image = blank(number, layout, num_tokens)
    image.memory[: layout.footer_offset] = _data(image)
    image.write_footer()
    for rank in range(layout.num_shards):
        image.seal_shard(rank)
    return image


def blanks_of(images: Sequence[BlockImage]) -> list[BlockImage]:
    """Memory for the same images once more."""
    return [copied(each, memoryview(mmap.mmap(-1, each.layout.image_bytes))) for each in images]


def copied(image: BlockImage, memory: memoryview) -> BlockImage:
    """The same image in other memory."""
    return BlockImage(image.layout, memory, image.key, image.num_tokens)


def is_right(image: BlockImage) -> bool:
    """Whether the data are those of ``sealed``, whatever the checksums say."""
    num_bytes = image.layout.num_shards * image.layout.shard_bytes  # padding is nobody's
    return image.memory[:num_bytes] == _data(image)[:num_bytes]


def small_config(folder: Path, num_images: int, layout: ImageLayout = LAYOUT) -> DiskConfig:
    """Room for that many images: less than the configuration takes from users."""
    return DiskConfig.model_construct(path=folder, max_bytes=num_images * layout.image_bytes)


def _data(image: BlockImage) -> bytes:
    seed = image.key + image.layout.fingerprint
    return hashlib.shake_128(seed).digest(image.layout.footer_offset)


class FaultyFiles(Files):
    """A device whose calls fail as ``errors`` says, by the call's name."""

    def __init__(self, folder: Path) -> None:
        self.errors: dict[str, OSError] = {}
        super().__init__(folder)

    def preallocate(self, name: str, num_bytes: int) -> None:
        self._fail("preallocate")
        super().preallocate(name, num_bytes)

    def read(self, name: str, buffers: Sequence[memoryview], offset: int) -> int:
        self._fail("read")
        return super().read(name, buffers, offset)

    def write(self, name: str, buffers: Sequence[memoryview], offset: int) -> int:
        self._fail("write")
        return super().write(name, buffers, offset)

    def put(self, name: str, content: bytes, offset: int) -> None:
        self._fail("put")
        super().put(name, content, offset)

    def rename(self, name: str, new_name: str) -> None:
        self._fail("rename")
        super().rename(name, new_name)

    def _fail(self, call: str) -> None:
        if call in self.errors:
            raise self.errors[call]
