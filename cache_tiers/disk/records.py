"""What a folder's journal says, as records of 48 bytes.

All of one size, so that after a damaged one the next is found again. A record says all that it is
about: replayed twice, or after others of the same slot, the last one holds. Must not know files.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from cache_tiers.block_image import ImageLayout
from cache_tiers.keys import BlockKey


class Created(NamedTuple):
    """A segment file is there, all slots free."""

    segment: int
    num_slots: int
    layout: ImageLayout


class Retired(NamedTuple):
    """A segment is gone, with all its images."""

    segment: int


class Stored(NamedTuple):
    """A slot holds an image; written after the image itself."""

    segment: int
    slot: int
    key: BlockKey
    num_tokens: int


class Dropped(NamedTuple):
    """A slot is free; written before anything else is put there."""

    segment: int
    slot: int


class Condemned(NamedTuple):
    """What a slot held came back wrong: it is not used again."""

    segment: int
    slot: int


Record = Created | Retired | Stored | Dropped | Condemned

_CRC = struct.Struct("<I")
_BODY = struct.Struct("<B3xIII16sQI")
RECORD_BYTES = _CRC.size + _BODY.size
_NO_KEY = bytes(16)
_CRC_SEED = zlib.crc32(b"headwater-disk-1")


def encode(record: Record) -> bytes:
    """As ``decode`` reads it."""
    match record:
        case Created(segment, num_slots, layout):
            body = _BODY.pack(
                1,
                segment,
                num_slots,
                layout.num_shards,
                layout.fingerprint,
                layout.shard_bytes,
                layout.block_size_tokens,
            )
        case Retired(segment):
            body = _BODY.pack(2, segment, 0, 0, _NO_KEY, 0, 0)
        case Stored(segment, slot, key, num_tokens):
            body = _BODY.pack(3, segment, slot, num_tokens, key, 0, 0)
        case Dropped(segment, slot):
            body = _BODY.pack(4, segment, slot, 0, _NO_KEY, 0, 0)
        case Condemned(segment, slot):
            body = _BODY.pack(5, segment, slot, 0, _NO_KEY, 0, 0)
    return _CRC.pack(zlib.crc32(body, _CRC_SEED)) + body


def decode(content: bytes) -> Iterator[Record | None]:
    """The records of ``content`` in order, ``None`` for a damaged one; the rest of a torn last one
    is left out.
    """
    for begin in range(0, len(content) - RECORD_BYTES + 1, RECORD_BYTES):
        body = content[begin + _CRC.size : begin + RECORD_BYTES]
        (crc,) = _CRC.unpack_from(content, begin)
        yield _decode_body(body) if zlib.crc32(body, _CRC_SEED) == crc else None


def _decode_body(body: bytes) -> Record | None:
    kind, segment, slot, count, key, shard_bytes, block_size_tokens = _BODY.unpack(body)
    match kind:
        case 1:
            return Created(segment, slot, ImageLayout(key, count, shard_bytes, block_size_tokens))
        case 2:
            return Retired(segment)
        case 3:
            return Stored(segment, slot, BlockKey(key), count)
        case 4:
            return Dropped(segment, slot)
        case 5:
            return Condemned(segment, slot)
        case _:
            return None
