"""A block's bytes as every tier and every wire holds them: data, then a footer that proves them.

An *image* is the KV of one block of one model: a *shard* per tensor-parallel rank, each with a
checksum of its own, so that ranks write and check their parts without each other. The checksum's
seed is made of everything that the bytes must belong to (layout, key, number of tokens, shard), so
that bytes of another block are as wrong as flipped ones. An image is moved whole and unchanged
between arena, disk, peer and object store. Must not know where it lies, nor tensors.
"""

import hashlib
from functools import lru_cache

import msgspec
import xxhash

from cache_tiers.keys import KEY_BYTES, BlockKey

ALIGN_BYTES = 4096
"""Images begin and end at multiples of it: direct I/O and mapped pages need that."""
FINGERPRINT_BYTES = 16
_MAGIC = b"HWKV0001"
_CHECKSUM_BYTES = 8
_CHECKSUMS_AT = len(_MAGIC) + KEY_BYTES + FINGERPRINT_BYTES + 8
MAX_SHARDS = (ALIGN_BYTES - _CHECKSUMS_AT) // _CHECKSUM_BYTES


class ImageLayout(msgspec.Struct, frozen=True, array_like=True):
    """What all images of one model on one kind of replica have in common."""

    fingerprint: bytes
    """``make_fingerprint``: images of another one are other KV."""
    num_shards: int
    """Tensor-parallel ranks."""
    shard_bytes: int
    """KV of one block on one rank, densely: a row of each layer after the other."""
    block_size_tokens: int

    @property
    def footer_offset(self) -> int:
        data_bytes = self.num_shards * self.shard_bytes
        return -(-data_bytes // ALIGN_BYTES) * ALIGN_BYTES

    @property
    def image_bytes(self) -> int:
        return self.footer_offset + ALIGN_BYTES


def make_fingerprint(*facts: str | int | bytes) -> bytes:
    """Of all that must be equal for KV to be interchangeable and that no key says: the parent of
    first keys (model and weights revision, dtype, layout), the number of shards, their size.
    """
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES, person=b"headwater-kv")
    for fact in facts:
        encoded = fact if isinstance(fact, bytes) else str(fact).encode()
        digest.update(len(encoded).to_bytes(4, "little"))
        digest.update(encoded)
    return digest.digest()


class BlockImage(msgspec.Struct, frozen=True):
    """A view of one image in somebody's memory; ``key`` and ``num_tokens`` are what is wanted, not
    what the bytes say.

    Made for every block that moves: a frozen dataclass takes eight times as long to make.
    """

    layout: ImageLayout
    memory: memoryview
    """``layout.image_bytes`` bytes."""
    key: BlockKey
    num_tokens: int
    """Of a partial block fewer than ``layout.block_size_tokens``; the rows after are of no use."""

    def shard(self, rank: int) -> memoryview:
        """The KV of one rank."""
        begin = rank * self.layout.shard_bytes
        return self.memory[begin : begin + self.layout.shard_bytes]

    def write_footer(self) -> None:
        """Say what the image is; one writer, at any time beside the shards' ``seal_shard``."""
        footer = self._head_of_footer()
        begin = self.layout.footer_offset
        self.memory[begin : begin + len(footer)] = footer

    def seal_shard(self, rank: int) -> None:
        """Write the checksum of a shard whose bytes are in place."""
        begin = self._checksum_at(rank)
        self.memory[begin : begin + _CHECKSUM_BYTES] = self._checksum(rank)

    def is_shard_sound(self, rank: int) -> bool:
        """Whether this is what is wanted, and the shard as it was sealed."""
        begin = self._checksum_at(rank)
        told = self.memory[begin : begin + _CHECKSUM_BYTES]
        return self._is_wanted() and told == self._checksum(rank)

    def is_sound(self) -> bool:
        """The same of all shards."""
        return all(map(self.is_shard_sound, range(self.layout.num_shards)))

    def _is_wanted(self) -> bool:
        begin = self.layout.footer_offset
        return bytes(self.memory[begin : begin + _CHECKSUMS_AT]) == self._head_of_footer()

    def _head_of_footer(self) -> bytes:
        num_tokens = self.num_tokens.to_bytes(8, "little")
        return _MAGIC + self.key + self.layout.fingerprint + num_tokens

    def _checksum_at(self, rank: int) -> int:
        return self.layout.footer_offset + _CHECKSUMS_AT + rank * _CHECKSUM_BYTES

    def _checksum(self, rank: int) -> bytes:
        seed = _seed(self.layout.fingerprint, self.key, self.num_tokens, rank)
        return xxhash.xxh3_64_intdigest(self.shard(rank), seed).to_bytes(_CHECKSUM_BYTES, "little")


@lru_cache(maxsize=4096)
def _seed(fingerprint: bytes, key: BlockKey, num_tokens: int, rank: int) -> int:
    parts = fingerprint + key + num_tokens.to_bytes(8, "little") + rank.to_bytes(8, "little")
    return xxhash.xxh3_64_intdigest(parts)
